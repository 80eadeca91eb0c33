//! The zip archive around a checkpoint, as ranges of the mapped file.

use std::collections::HashMap;
use std::io::Cursor;
use std::path::Path;

use zip::{CompressionMethod, ZipArchive};

use crate::Error;
use crate::map::Bytes;

/// The files of a checkpoint's zip archive.
pub struct Archive<'a> {
    pub path: &'a Path,
    bytes: &'a Bytes,
    /// Files by name, without the directory that all of them are in.
    files: HashMap<String, Stored>,
}

enum Stored {
    Plain { start: usize, len: usize },
    Packed,
}

impl<'a> Archive<'a> {
    pub fn open(path: &'a Path, bytes: &'a Bytes) -> Result<Self, Error> {
        let bad = |problem: String| Error::Archive { path: path.into(), problem };
        let torn = |error| bad(format!("its zip archive is damaged ({error}); was it cut off?"));
        crate::zipped::check(bytes).map_err(bad)?;
        let mut zip = ZipArchive::new(Cursor::new(&**bytes)).map_err(torn)?;
        let prefix = prefix(&zip).ok_or_else(|| {
            let (kind, remedy) = match zip.file_names().any(|name| name.ends_with(".npy")) {
                true => ("a NumPy archive (.npz)", "save the tensors as safetensors"),
                false => ("a zip archive without data.pkl", "unpack it and give the checkpoint"),
            };
            Error::WrongKind { path: path.into(), kind, remedy }
        })?;
        let mut files = HashMap::with_capacity(zip.len());
        for index in 0..zip.len() {
            let file = zip.by_index_raw(index).map_err(torn)?;
            let Some(name) = file.name().strip_prefix(&prefix) else { continue };
            let plain = file.compression() == CompressionMethod::Stored && !file.encrypted();
            let range = (file.data_start(), file.compressed_size());
            let stored = match range {
                _ if !plain => Stored::Packed,
                (Some(start), len) if inside(start, len, bytes.len()) => {
                    Stored::Plain { start: start as usize, len: len as usize }
                }
                _ => return Err(bad(format!("`{name}` lies outside of the file"))),
            };
            files.insert(name.to_string(), stored);
        }
        if files.contains_key("constants.pkl") {
            let kind = "a TorchScript module";
            let remedy =
                "save its weights: torch.save(torch.jit.load(FILE).state_dict(), \"weights.pt\")";
            return Err(Error::WrongKind { path: path.into(), kind, remedy });
        }
        let archive = Self { path, bytes, files };
        if archive.files.contains_key("byteorder") && &*archive.file("byteorder")? != b"little" {
            let (kind, remedy) = ("big-endian", "save it again on a little-endian machine");
            return Err(Error::WrongKind { path: path.into(), kind, remedy });
        }
        Ok(archive)
    }

    pub fn file(&self, name: &str) -> Result<Bytes, Error> {
        let bad = |problem| Error::Archive { path: self.path.into(), problem };
        match self.files.get(name) {
            Some(Stored::Plain { start, len }) => self
                .bytes
                .slice(*start..*start + *len)
                .ok_or_else(|| bad(format!("`{name}` lies outside of the file"))),
            Some(Stored::Packed) => Err(bad(format!(
                "`{name}` is compressed or encrypted; torch.save stores it as it is: save it again"
            ))),
            None => Err(bad(format!("`{name}` is missing"))),
        }
    }
}

fn inside(start: u64, len: u64, file: usize) -> bool {
    start.checked_add(len).is_some_and(|end| end <= file as u64)
}

/// PyTorch puts everything in one directory, named after the file that was saved.
fn prefix(zip: &ZipArchive<Cursor<&[u8]>>) -> Option<String> {
    let pickle = zip.file_names().find(|name| *name == "data.pkl" || name.ends_with("/data.pkl"));
    pickle?.strip_suffix("data.pkl").map(String::from)
}

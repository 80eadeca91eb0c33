//! Arrays by name as `numpy.savez` and `numpy.savez_compressed` write them: a zip archive with one
//! `.npy` file per array. Uncompressed arrays stay mapped; compressed ones are unpacked into memory
//! of the size that their own header asks for, and no more; very long ones into a temporary file, which is
//! mapped.

use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

use flate2::Crc;
use flate2::read::DeflateDecoder;
use zip::{CompressionMethod, ZipArchive};

use crate::map::{Buffer, Bytes, Pages};
use crate::npy::{self, Unfit};
use crate::spill::Spill;
use crate::{Array, Error, Tensor};

/// The first bytes of a zip archive.
pub const MAGIC: &[u8] = b"PK\x03\x04";
/// Arrays up to this many bytes may be compressed to any degree.
const UNPACKED_SMALL: usize = 1 << 30;
/// Larger arrays with a higher compression ratio are refused as decompression bombs.
const RATIO_MAX: usize = 256;
/// Compressed arrays up to this many bytes are unpacked into memory.
const IN_MEMORY_MAX: usize = 1 << 29;
/// Bytes that are unpacked at once where they go to a file.
const AT_ONCE: usize = 1 << 22;
/// Upper bound on the bytes of a short text, such as the name of a sparse format.
const TEXT_MAX: usize = 64;

/// An archive whose arrays are read on demand.
#[derive(Debug)]
pub struct Npz {
    path: PathBuf,
    bytes: Bytes,
    members: BTreeMap<String, Member>,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    start: usize,
    /// Bytes in the archive.
    packed: usize,
    /// Bytes after unpacking.
    unpacked: usize,
    crc: u32,
    /// `None` where the archive is encrypted or names another method.
    deflated: Option<bool>,
}

impl Npz {
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let bytes = Bytes::map(path)?;
        let bad = |problem: String| Error::Npz { path: path.into(), problem };
        let torn = |error| bad(format!("its zip archive is damaged ({error}); was it cut off?"));
        crate::zipped::check(&bytes).map_err(bad)?;
        let mut zip = ZipArchive::new(Cursor::new(&*bytes)).map_err(torn)?;
        let mut members = BTreeMap::new();
        for index in 0..zip.len() {
            let file = zip.by_index_raw(index).map_err(torn)?;
            let Some(name) = file.name().strip_suffix(".npy") else { continue };
            let outside = || bad(format!("array `{name}` lies outside of the file"));
            let deflated = match file.compression() {
                _ if file.encrypted() => None,
                CompressionMethod::Stored => Some(false),
                CompressionMethod::DEFLATE => Some(true),
                _ => None,
            };
            let start = file.data_start().ok_or_else(outside)?;
            let end = start.checked_add(file.compressed_size()).ok_or_else(outside)?;
            if end > bytes.len() as u64 {
                return Err(outside());
            }
            let member = Member {
                start: start as usize,
                packed: file.compressed_size() as usize,
                unpacked: usize::try_from(file.size()).map_err(|_| outside())?,
                crc: file.crc32(),
                deflated,
            };
            members.insert(name.to_string(), member);
        }
        drop(zip);
        Ok(Self { path: path.into(), bytes, members })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn contains(&self, name: &str) -> bool {
        self.members.contains_key(name)
    }

    /// The names of all arrays, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.members.keys().map(String::as_str)
    }

    /// The array of this name, or an error that lists the names.
    pub fn array(&self, name: &str) -> Result<Tensor, Error> {
        let (member, bytes) = self.member(name)?;
        let bad = |problem: String| self.bad(name, problem);
        let unfit = |unfit| match unfit {
            Unfit::Bytes(problem) => bad(format!("cannot be read: {problem}")),
            Unfit::Memory(error) => error,
        };
        if member.deflated == Some(false) {
            let head = npy::head(&bytes).map_err(|problem| unfit(Unfit::Bytes(problem)))?;
            return npy::tensor(&head, &bytes).map_err(unfit);
        }
        let torn = |error| bad(format!("cannot be unpacked: {error}; is the file damaged?"));
        // Read the header first: memory is taken only if it agrees with the archive.
        let mut start = vec![0; member.unpacked.min(npy::HEADER_MAX + 12)];
        DeflateDecoder::new(&*bytes).read_exact(&mut start).map_err(torn)?;
        let head = npy::head(&start).map_err(|problem| unfit(Unfit::Bytes(problem)))?;
        if head.file_len() != Some(member.unpacked) {
            let (shape, len) = (&head.shape, member.unpacked);
            return Err(bad(format!("has shape {shape:?}, but its file has {len} bytes")));
        }
        if member.unpacked > UNPACKED_SMALL.max(member.packed.saturating_mul(RATIO_MAX)) {
            let (packed, unpacked) = (member.packed, member.unpacked);
            return Err(bad(format!(
                "would grow from {packed} to {unpacked} bytes, as decompression bombs do; if the \
                 file can be trusted, save it again with numpy.savez"
            )));
        }
        let mut decoder = DeflateDecoder::new(&*bytes);
        let mut crc = Crc::new();
        let file: Bytes = if member.unpacked <= IN_MEMORY_MAX {
            let mut buffer = Buffer::zeroed(member.unpacked, Pages::Small)?;
            decoder.read_exact(buffer.as_mut_slice()).map_err(torn)?;
            crc.update(buffer.as_slice());
            buffer.into()
        } else {
            let mut spill = Spill::<u8>::with_memory(AT_ONCE);
            let mut chunk = vec![0; AT_ONCE];
            let mut left = member.unpacked;
            while left > 0 {
                let chunk = &mut chunk[..left.min(AT_ONCE)];
                decoder.read_exact(chunk).map_err(torn)?;
                crc.update(chunk);
                spill.extend(chunk)?;
                left -= chunk.len();
            }
            match spill.finish()? {
                Array::Mapped(mapped) => mapped.into_bytes(),
                Array::Owned(_) => unreachable!("the array is longer than one chunk"),
            }
        };
        if crc.sum() != member.crc || decoder.read(&mut [0]).map_err(torn)? != 0 {
            return Err(bad("is damaged: its checksum is wrong".into()));
        }
        npy::tensor(&head, &file).map_err(unfit)
    }

    /// A single short text of bytes; `None` if the array is something else.
    pub fn text(&self, name: &str) -> Result<Option<String>, Error> {
        let (member, bytes) = self.member(name)?;
        let mut file = vec![0; member.unpacked.min(1024)];
        let read = if member.deflated == Some(true) {
            DeflateDecoder::new(&*bytes).read_exact(&mut file)
        } else {
            (&*bytes).read_exact(&mut file)
        };
        read.map_err(|error| self.bad(name, format!("cannot be read: {error}")))?;
        let header_end = file.iter().position(|byte| *byte == b'\n');
        let Some((header, text)) = header_end.map(|end| file.split_at(end + 1)) else {
            return Ok(None);
        };
        let is_bytes = header.windows(3).any(|window| window == b"'|S");
        let text = std::str::from_utf8(text).ok().map(|text| text.trim_end_matches('\0'));
        Ok(text.filter(|text| is_bytes && text.len() <= TEXT_MAX).map(String::from))
    }

    fn member(&self, name: &str) -> Result<(Member, Bytes), Error> {
        let Some(member) = self.members.get(name) else {
            let found: Vec<_> = self.names().take(20).collect();
            let problem = format!("is missing; there are: {}", found.join(", "));
            return Err(self.bad(name, problem));
        };
        if member.deflated.is_none() {
            let problem = "is encrypted or packed by a method that NumPy does not use";
            return Err(self.bad(name, problem.into()));
        }
        let range = member.start..member.start.saturating_add(member.packed);
        let bytes = self.bytes.slice(range);
        let bytes = bytes.ok_or_else(|| self.bad(name, "lies outside of the file".into()))?;
        Ok((*member, bytes))
    }

    fn bad(&self, name: &str, problem: String) -> Error {
        Error::Array { path: self.path.clone(), name: name.into(), problem }
    }
}

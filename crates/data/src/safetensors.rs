//! The safetensors format: read by mapping, written as a stream.
//!
//! The format allows no holes between tensors. To start each on a cache line all the same, the
//! writer fills gaps with tensors of bytes named `_pad.{n}`, which any reader of the format takes
//! for ordinary tensors and ours leaves out.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype as FileDtype, Metadata};

use crate::map::Bytes;
use crate::tensor::byte_len;
use crate::{Checkpoint, Dtype, Error, Output, Tensor};

/// Where each tensor begins is a multiple of this: a cache line.
pub const ALIGNMENT: usize = 64;
/// Where the first tensor begins: a page, so that lines of the file are lines of memory.
const DATA_ALIGNMENT: usize = 4096;
const PAD: &str = "_pad.";
/// What other readers of the format accept.
const HEADER_MAX: usize = 100_000_000;
/// Upper bound on tensors, counted by braces before the header is parsed: a parsed tensor takes ten
/// times the bytes of its text.
const TENSORS_MAX: usize = 1 << 20;
const METADATA: &str = "__metadata__";

pub fn read(path: &Path, bytes: &Bytes) -> Result<Checkpoint, Error> {
    let bad = |problem: String| Error::Safetensors { path: path.into(), problem };
    let (length, rest) = bytes.split_first_chunk().ok_or_else(|| {
        bad(format!("its {} bytes cannot hold even the length of a header", bytes.len()))
    })?;
    let header_len = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    if header_len > HEADER_MAX || rest.first().is_some_and(|first| *first != b'{') {
        let (kind, remedy) = ("of no known kind", "expected safetensors, or .pt of torch.save");
        return Err(Error::WrongKind { path: path.into(), kind, remedy });
    }
    let header = rest.get(..header_len).ok_or_else(|| {
        bad(format!(
            "its header of {header_len} bytes ends behind the file's {} bytes; was it cut off?",
            bytes.len()
        ))
    })?;
    if header.iter().filter(|byte| **byte == b'{').count() > TENSORS_MAX {
        return Err(bad(format!("its header lists more than {TENSORS_MAX} tensors")));
    }
    let header: Metadata = serde_json::from_slice(header)
        .map_err(|error| bad(format!("its header is wrong: {error}")))?;
    let data_start = 8 + header_len;
    let data_len = bytes.len() - data_start;
    if header.data_len() != data_len {
        return Err(bad(format!(
            "its header promises {} bytes of tensors and {data_len} are there; was it cut off?",
            header.data_len()
        )));
    }
    let mut tensors = BTreeMap::new();
    for (name, info) in header.tensors() {
        if name.starts_with(PAD) {
            continue;
        }
        let dtype = dtype_of(info.dtype).ok_or_else(|| Error::Tensor {
            path: path.into(),
            name: name.clone(),
            problem: format!("is of type {}, which is not supported", info.dtype),
        })?;
        let (start, end) = info.data_offsets;
        let tensor = bytes
            .slice(data_start + start..data_start + end)
            .and_then(|bytes| Tensor::new(dtype, info.shape.clone(), bytes))
            .ok_or_else(|| bad(format!("tensor `{name}` lies outside of the file")))?;
        tensors.insert(name, tensor);
    }
    let metadata = header.metadata().clone().unwrap_or_default().into_iter().collect();
    Ok(Checkpoint { path: path.into(), tensors, metadata, order: None })
}

const DTYPES: [(Dtype, FileDtype); 13] = [
    (Dtype::F64, FileDtype::F64),
    (Dtype::F32, FileDtype::F32),
    (Dtype::F16, FileDtype::F16),
    (Dtype::Bf16, FileDtype::BF16),
    (Dtype::I64, FileDtype::I64),
    (Dtype::I32, FileDtype::I32),
    (Dtype::I16, FileDtype::I16),
    (Dtype::I8, FileDtype::I8),
    (Dtype::U64, FileDtype::U64),
    (Dtype::U32, FileDtype::U32),
    (Dtype::U16, FileDtype::U16),
    (Dtype::U8, FileDtype::U8),
    (Dtype::Bool, FileDtype::BOOL),
];

fn dtype_of(file: FileDtype) -> Option<Dtype> {
    DTYPES.into_iter().find_map(|(ours, theirs)| (theirs == file).then_some(ours))
}

fn name_in_file(dtype: Dtype) -> String {
    let of_file = DTYPES.into_iter().find_map(|(ours, theirs)| (ours == dtype).then_some(theirs));
    of_file.map_or_else(String::new, |file| file.to_string())
}

/// A tensor to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
}

impl Entry {
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: &[usize]) -> Self {
        Self { name: name.into(), dtype, shape: shape.into() }
    }

    /// Bytes of the tensor; `None` if they do not fit a word.
    pub fn bytes(&self) -> Option<usize> {
        byte_len(self.dtype, &self.shape)
    }
}

/// Writes tensors one after the other with a small, fixed amount of memory. The file appears under
/// its name when it is complete, and never otherwise.
pub struct Writer {
    path: PathBuf,
    out: Output,
    tensors: std::vec::IntoIter<Placed>,
    /// Bytes of the current tensor that are still to be written.
    rest: usize,
    promised: usize,
    written: usize,
}

/// A tensor's bytes, and those that fill up the gap behind it.
struct Placed {
    bytes: usize,
    padding: usize,
}

impl Writer {
    /// Each tensor begins on a cache line.
    pub fn create(
        path: impl AsRef<Path>,
        entries: &[Entry],
        metadata: &BTreeMap<String, String>,
    ) -> Result<Self, Error> {
        Self::aligned(path.as_ref(), entries, metadata, ALIGNMENT)
    }

    /// Tensors follow each other without gaps: for readers that know every name they expect.
    pub fn packed(
        path: impl AsRef<Path>,
        entries: &[Entry],
        metadata: &BTreeMap<String, String>,
    ) -> Result<Self, Error> {
        Self::aligned(path.as_ref(), entries, metadata, 1)
    }

    fn aligned(
        path: &Path,
        entries: &[Entry],
        metadata: &BTreeMap<String, String>,
        alignment: usize,
    ) -> Result<Self, Error> {
        let (header, placed) = header(path, entries, metadata, alignment)?;
        let mut out = Output::create(path)?;
        let bytes = |tensor: &Placed| (tensor.bytes + tensor.padding) as u64;
        out.check_space(header.len() as u64 + placed.iter().map(bytes).sum::<u64>())?;
        out.write_all(&header).map_err(Error::io("write", path))?;
        Ok(Self {
            path: path.into(),
            out,
            promised: placed.iter().map(|tensor| tensor.bytes).sum(),
            written: 0,
            tensors: placed.into_iter(),
            rest: 0,
        })
    }

    /// The next bytes of the tensors, in the order of the entries; where one tensor ends the next
    /// begins, even in the middle of `bytes`.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        let written = self.written.saturating_add(bytes.len());
        if written > self.promised {
            return Err(self.wrong_count(written));
        }
        self.written = written;
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(self.rest));
            self.put(now)?;
            bytes = later;
            self.rest -= now.len();
            // The gap before a tensor is filled when the tensor begins.
            while self.rest == 0 && !bytes.is_empty() {
                let Some(next) = self.tensors.next() else { break };
                self.put(&[0; ALIGNMENT][..next.padding])?;
                self.rest = next.bytes;
            }
        }
        Ok(())
    }

    /// Puts the file in its place, if all promised bytes were written.
    pub fn finish(mut self) -> Result<(), Error> {
        let is_complete = self.rest == 0 && self.tensors.as_slice().iter().all(|t| t.bytes == 0);
        if !is_complete {
            return Err(self.wrong_count(self.written));
        }
        while let Some(tensor) = self.tensors.next() {
            self.put(&[0; ALIGNMENT][..tensor.padding])?;
        }
        self.out.commit()
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.out.write_all(bytes).map_err(Error::io("write", &self.path))
    }

    fn wrong_count(&self, got: usize) -> Error {
        let problem = format!("{} bytes of tensors were promised and {got} came", self.promised);
        Error::Write { path: self.path.clone(), problem }
    }
}

/// The header with the length in front of it, and what lies behind it.
fn header(
    path: &Path,
    entries: &[Entry],
    metadata: &BTreeMap<String, String>,
    alignment: usize,
) -> Result<(Vec<u8>, Vec<Placed>), Error> {
    let bad = |problem: String| Error::Write { path: path.into(), problem };
    let mut fields = Vec::with_capacity(entries.len() + 1);
    if !metadata.is_empty() {
        fields.push(format!("{:?}:{}", METADATA, serde_json::json!(metadata)));
    }
    let mut field = |name: &str, dtype: &str, shape: &[usize], range: [usize; 2]| {
        let info = serde_json::json!({ "dtype": dtype, "shape": shape, "data_offsets": range });
        fields.push(format!("{}:{info}", serde_json::json!(name)));
    };
    let (mut names, mut placed, mut end) = (BTreeSet::new(), Vec::with_capacity(entries.len()), 0);
    for Entry { name, dtype, shape } in entries {
        if name == METADATA || name.starts_with(PAD) || !names.insert(name) {
            return Err(bad(format!("the name `{name}` is taken")));
        }
        let too_large = || bad(format!("tensor `{name}` is too large"));
        let bytes = byte_len(*dtype, shape).ok_or_else(too_large)?;
        let start = usize::next_multiple_of(end, alignment);
        let padding = start - end;
        if padding > 0 {
            field(&format!("{PAD}{}", placed.len()), "U8", &[padding], [end, start]);
        }
        // Far from the end of the address space, where rounding up would wrap.
        end = start.checked_add(bytes).filter(|end| *end < usize::MAX / 2).ok_or_else(too_large)?;
        field(name, &name_in_file(*dtype), shape, [start, end]);
        placed.push(Placed { bytes, padding });
    }
    let mut text = format!("{{{}}}", fields.join(","));
    let padded = (text.len() + 8).next_multiple_of(DATA_ALIGNMENT) - 8;
    text.extend(std::iter::repeat_n(' ', padded - text.len()));
    if text.len() > HEADER_MAX {
        return Err(bad(format!("{} tensors are more than a header can name", entries.len())));
    }
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.extend(text.as_bytes());
    Ok((header, placed))
}

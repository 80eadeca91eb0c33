//! Tensors as they lie in files, by name, whoever wrote the file.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use half::{bf16, f16};

use crate::map::Bytes;
use crate::{Error, safetensors, torch};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    F64,
    F32,
    F16,
    Bf16,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool,
}

impl Dtype {
    pub const ALL: [Self; 13] = [
        Self::F64,
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::I64,
        Self::I32,
        Self::I16,
        Self::I8,
        Self::U64,
        Self::U32,
        Self::U16,
        Self::U8,
        Self::Bool,
    ];

    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F64 | Self::I64 | Self::U64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::F64 => "fp64",
            Self::F32 => "fp32",
            Self::F16 => "fp16",
            Self::Bf16 => "bf16",
            Self::I64 => "int64",
            Self::I32 => "int32",
            Self::I16 => "int16",
            Self::I8 => "int8",
            Self::U64 => "uint64",
            Self::U32 => "uint32",
            Self::U16 => "uint16",
            Self::U8 => "uint8",
            Self::Bool => "bool",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The bytes of a tensor of this shape; `None` where no memory could hold it.
pub fn byte_len(dtype: Dtype, shape: &[usize]) -> Option<usize> {
    let elements = shape.iter().try_fold(1_usize, |product, n| product.checked_mul(*n))?;
    elements.checked_mul(dtype.bytes())
}

/// Contiguous and row-major; `bytes` holds exactly the elements.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Bytes,
}

impl Tensor {
    /// `None` where the bytes are not those of this shape.
    pub fn new(dtype: Dtype, shape: Vec<usize>, bytes: Bytes) -> Option<Self> {
        (byte_len(dtype, &shape) == Some(bytes.len())).then_some(Self { dtype, shape, bytes })
    }

    pub fn elements(&self) -> usize {
        self.bytes.len() / self.dtype.bytes()
    }

    /// As fp32: in place where it is so already, else converted. `None` for integers.
    pub fn as_f32(&self) -> Option<Cow<'_, [f32]>> {
        Some(match self.dtype {
            Dtype::F32 => borrow_or(&self.bytes, f32::from_le_bytes),
            Dtype::F16 => Cow::Owned(each(&self.bytes, |b| f16::from_le_bytes(b).to_f32())),
            Dtype::Bf16 => Cow::Owned(each(&self.bytes, |b| bf16::from_le_bytes(b).to_f32())),
            Dtype::F64 => Cow::Owned(each(&self.bytes, |b| f64::from_le_bytes(b) as f32)),
            _ => return None,
        })
    }

    /// As 64-bit integers: in place where they are so already, else widened. `None` for numbers
    /// that are not integers or do not fit.
    pub fn as_i64(&self) -> Option<Cow<'_, [i64]>> {
        let bytes = &self.bytes;
        Some(match self.dtype {
            Dtype::I64 => borrow_or(bytes, i64::from_le_bytes),
            Dtype::I32 => Cow::Owned(each(bytes, |b| i32::from_le_bytes(b).into())),
            Dtype::I16 => Cow::Owned(each(bytes, |b| i16::from_le_bytes(b).into())),
            Dtype::I8 => Cow::Owned(each(bytes, |b| i8::from_le_bytes(b).into())),
            Dtype::U32 => Cow::Owned(each(bytes, |b| u32::from_le_bytes(b).into())),
            Dtype::U16 => Cow::Owned(each(bytes, |b| u16::from_le_bytes(b).into())),
            Dtype::U8 => Cow::Owned(each(bytes, |b| u8::from_le_bytes(b).into())),
            Dtype::U64 => {
                let wide = each(bytes, |b| i64::try_from(u64::from_le_bytes(b)));
                Cow::Owned(wide.into_iter().collect::<Result<_, _>>().ok()?)
            }
            Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::Bf16 | Dtype::Bool => return None,
        })
    }
}

fn each<const N: usize, T>(bytes: &[u8], convert: impl Fn([u8; N]) -> T) -> Vec<T> {
    let (elements, _) = bytes.as_chunks();
    elements.iter().map(|element| convert(*element)).collect()
}

/// Files hold little-endian numbers at any address; only aligned ones, on a little-endian
/// machine, are numbers as they lie.
fn borrow_or<const N: usize, T: bytemuck::Pod>(
    bytes: &[u8],
    convert: impl Fn([u8; N]) -> T,
) -> Cow<'_, [T]> {
    match bytemuck::try_cast_slice(bytes) {
        Ok(elements) if cfg!(target_endian = "little") => Cow::Borrowed(elements),
        _ => Cow::Owned(each(bytes, convert)),
    }
}

/// All tensors of a file, mapped.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    pub path: PathBuf,
    /// Nested dictionaries are flattened: `state_dict.emb_l.0.weight`; members of lists and
    /// tuples are named by their position.
    pub tensors: BTreeMap<String, Tensor>,
    /// What else the file says: text and single numbers, named as the tensors are.
    pub metadata: BTreeMap<String, String>,
    /// The tensors' names as they were saved, where the file keeps their order; safetensors does
    /// not, as its writers sort.
    pub order: Option<Vec<String>>,
}

impl Checkpoint {
    /// Opens a file by what it holds, whatever it is called.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let bytes = Bytes::map(path)?;
        if bytes.starts_with(b"PK\x03\x04") || bytes.starts_with(b"PK\x05\x06") {
            return torch::read(path, &bytes);
        }
        let wrong = |kind, remedy| Err(Error::WrongKind { path: path.into(), kind, remedy });
        // torch.save before 1.6: a pickled magic number of ten bytes, behind protocol 2.
        if bytes.starts_with(b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19") {
            let remedy = "save it again with torch.save of PyTorch 1.6 or later";
            return wrong("in PyTorch's legacy format", remedy);
        }
        if bytes.first() == Some(&0x80) && bytes.get(1).is_some_and(|version| *version <= 5) {
            return wrong("a bare pickle", "save it with torch.save, or as safetensors");
        }
        if bytes.get(257..262) == Some(b"ustar") {
            return wrong("a tar archive", "unpack it and give the checkpoint inside");
        }
        if bytes.starts_with(b"\x1f\x8b") {
            return wrong("compressed with gzip", "unpack it first: mapped files cannot be packed");
        }
        if bytes.starts_with(b"version https://git-lfs") {
            return wrong(
                "a pointer of git-lfs, not the file",
                "fetch the file with `git lfs pull`",
            );
        }
        if bytes.starts_with(b"\x89HDF\r\n") {
            return wrong("an HDF5 file", "save the weights as safetensors");
        }
        if bytes.starts_with(b"\x93NUMPY") {
            return wrong("a NumPy array", "save the weights by name, as safetensors");
        }
        safetensors::read(path, &bytes)
    }
}

//! Tensors by name, as they lie in files of any supported format.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};

use half::{bf16, f16};

use crate::map::Bytes;
use crate::{Error, safetensors, shards, torch};

/// The element type of a tensor.
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

/// The bytes of a tensor of this shape; `None` where they overflow.
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
    /// `None` where the number of bytes does not fit the shape.
    pub fn new(dtype: Dtype, shape: Vec<usize>, bytes: Bytes) -> Option<Self> {
        (byte_len(dtype, &shape) == Some(bytes.len())).then_some(Self { dtype, shape, bytes })
    }

    pub fn elements(&self) -> usize {
        self.bytes.len() / self.dtype.bytes()
    }

    /// The elements as fp32: borrowed where they are fp32, else converted. `None` for integers.
    pub fn as_f32(&self) -> Option<Cow<'_, [f32]>> {
        Some(match self.dtype {
            Dtype::F32 => borrow_or(&self.bytes, f32::from_le_bytes),
            Dtype::F16 => Cow::Owned(each(&self.bytes, |b| f16::from_le_bytes(b).to_f32())),
            Dtype::Bf16 => Cow::Owned(each(&self.bytes, |b| bf16::from_le_bytes(b).to_f32())),
            Dtype::F64 => Cow::Owned(each(&self.bytes, |b| f64::from_le_bytes(b) as f32)),
            _ => return None,
        })
    }

    /// The elements as 64-bit integers: borrowed where they are such, else widened. `None` for
    /// numbers that are not integers or do not fit.
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

/// All tensors of a checkpoint, mapped.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    pub path: PathBuf,
    /// Nested dictionaries are flattened: `state_dict.emb_l.0.weight`; members of lists and
    /// tuples are named by their position.
    pub tensors: BTreeMap<String, Tensor>,
    /// Text and single numbers of the file, named as the tensors are.
    pub metadata: BTreeMap<String, String>,
    /// The tensors' names as they were saved; `None` where the format does not keep their order.
    pub order: Option<Vec<String>>,
}

/// Kinds of files that hold no tensors by name: first bytes, what they are, what to do.
const OTHER_KINDS: [(&[u8], &str, &str); 11] = [
    (b"\x1f\x8b", "compressed with gzip", "unpack it first: gunzip"),
    (b"BZh", "compressed with bzip2", "unpack it first: bunzip2"),
    (b"\xfd7zXZ\0", "compressed with xz", "unpack it first: unxz"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "unpack it first: unzstd"),
    (
        b"version https://git-lfs",
        "a pointer of git-lfs, not the file",
        "fetch the file with `git lfs pull`",
    ),
    (b"\x89HDF\r\n", "an HDF5 file", "save the tensors as safetensors"),
    (b"\x93NUMPY", "a NumPy array", "save the tensors by name, as safetensors"),
    (b"MATLAB ", "a MATLAB file", "save the tensors as safetensors"),
    (b"PAR1", "a Parquet file", "save the tensors as safetensors"),
    (b"GGUF", "a GGUF file", "save the tensors as safetensors"),
    (b"%PDF", "a PDF document", EXPECTED),
];
const EXPECTED: &str = "expected safetensors, or .pt as torch.save writes it";
/// The first bytes, by which text is told from numbers.
const TEXT_BYTES: usize = 512;

impl Checkpoint {
    /// Opens a file by its content, whatever its name, or a directory of a checkpoint in parts.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        if path.is_dir() {
            return match Parts::find(path) {
                Some(Parts::Distributed) => torch::distributed::read(path),
                Some(Parts::Index(index)) => Self::open(index),
                None => Err(Error::NoCheckpoint { path: path.into() }),
            };
        }
        let bytes = Bytes::map(path)?;
        let wrong = |kind, remedy| Err(Error::WrongKind { path: path.into(), kind, remedy });
        if bytes.starts_with(b"PK\x03\x04") || bytes.starts_with(b"PK\x05\x06") {
            return torch::read(path, &bytes);
        }
        if bytes.starts_with(torch::legacy::MAGIC) {
            return torch::legacy::read(path, &bytes);
        }
        if bytes.first() == Some(&0x80) && bytes.get(1).is_some_and(|version| *version <= 5) {
            if path.file_name().is_some_and(|name| name == torch::distributed::METADATA) {
                return torch::distributed::read(path.parent().unwrap_or(Path::new("")));
            }
            return wrong("a bare pickle", "save it with torch.save, or as safetensors");
        }
        if bytes.get(257..262) == Some(b"ustar") {
            return wrong("a tar archive", "unpack it and give the checkpoint inside");
        }
        if let Some((_, kind, remedy)) =
            OTHER_KINDS.into_iter().find(|(magic, ..)| bytes.starts_with(magic))
        {
            return wrong(kind, remedy);
        }
        if bytes.starts_with(b"{") {
            return shards::read(path, &bytes);
        }
        if is_text(&bytes[..bytes.len().min(TEXT_BYTES)]) {
            return wrong("a text file", EXPECTED);
        }
        safetensors::read(path, &bytes)
    }

    /// Whether a directory holds a checkpoint in parts: one of `torch.distributed.checkpoint`, or
    /// safetensors files with an index.
    pub fn is_in_parts(dir: &Path) -> bool {
        Parts::find(dir).is_some()
    }
}

/// How a directory holds a checkpoint.
enum Parts {
    Distributed,
    Index(PathBuf),
}

impl Parts {
    /// `None` too where there are several indices: the user has to choose.
    fn find(dir: &Path) -> Option<Self> {
        if dir.join(torch::distributed::METADATA).is_file() {
            return Some(Self::Distributed);
        }
        let entries = std::fs::read_dir(dir).ok()?;
        let mut indices = entries.filter_map(|entry| {
            let path = entry.ok()?.path();
            path.to_str()?.ends_with(shards::SUFFIX).then_some(path)
        });
        let index = indices.next()?;
        indices.next().is_none().then_some(Self::Index(index))
    }
}

fn is_text(start: &[u8]) -> bool {
    let text = match std::str::from_utf8(start) {
        Ok(text) => text,
        // The last character may be cut in two.
        Err(error) if start.len() == TEXT_BYTES && error.valid_up_to() + 3 >= TEXT_BYTES => {
            std::str::from_utf8(&start[..error.valid_up_to()]).unwrap_or("\0")
        }
        Err(_) => return false,
    };
    text.len() >= 8 && !text.contains(|c: char| c.is_control() && !c.is_ascii_whitespace())
}

/// Whether a name in a file's index is that of a file beside it: nothing outside is opened.
pub(crate) fn plain_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!(parts.next(), Some(Component::Normal(_))) && parts.next().is_none()
}

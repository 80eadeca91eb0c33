//! One array as `numpy.save` writes it.

use std::path::Path;

use crate::map::{Buffer, Bytes, Pages};
use crate::tensor::byte_len;
use crate::{Dtype, Error, Tensor};

pub const MAGIC: &[u8] = b"\x93NUMPY";
/// Upper bound; real headers have about a hundred bytes.
pub(crate) const HEADER_MAX: usize = 1 << 16;

/// The array as a tensor: mapped, or copied if it is stored column by column.
pub fn read(path: &Path, bytes: &Bytes) -> Result<Tensor, Error> {
    let bad = |problem: String| Error::Trace {
        path: path.into(),
        problem: format!("not a readable NumPy array: {problem}"),
    };
    let head = head(bytes).map_err(bad)?;
    tensor(&head, bytes).map_err(|problem| match problem {
        Unfit::Bytes(problem) => bad(problem),
        Unfit::Memory(error) => error,
    })
}

/// The content of a header.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Whether the first index varies fastest.
    pub fortran: bool,
    /// The byte at which the elements begin.
    pub start: usize,
}

impl Head {
    /// Bytes of header and elements; `None` where they overflow.
    pub fn file_len(&self) -> Option<usize> {
        byte_len(self.dtype, &self.shape)?.checked_add(self.start)
    }
}

pub(crate) fn head(bytes: &[u8]) -> Result<Head, String> {
    let cut_off = "it ends inside of its header; was it cut off?";
    let rest = bytes.strip_prefix(MAGIC).ok_or("it was not written by numpy.save")?;
    let (len, fixed) = match rest {
        [1, _, low, high, ..] => (usize::from(u16::from_le_bytes([*low, *high])), 10),
        [2 | 3, _, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, 12),
        [] | [_] | [1..=3, ..] => return Err(cut_off.into()),
        _ => return Err("its version is unknown".into()),
    };
    if len > HEADER_MAX {
        return Err("its header is too long".into());
    }
    let start = fixed + len;
    let header = bytes.get(fixed..start).ok_or(cut_off)?;
    let header = std::str::from_utf8(header).map_err(|_| "its header is not text")?;
    let (dtype, shape, fortran) = parse(header)?;
    let head = Head { dtype, shape, fortran, start };
    if head.file_len().is_none() {
        return Err("its shape is too large".into());
    }
    Ok(head)
}

/// Why bytes are not an array.
pub(crate) enum Unfit {
    Bytes(String),
    Memory(Error),
}

/// The elements of a whole file, whose header was read before.
pub(crate) fn tensor(head: &Head, bytes: &Bytes) -> Result<Tensor, Unfit> {
    let len = byte_len(head.dtype, &head.shape).unwrap_or(usize::MAX);
    let got = bytes.len().saturating_sub(head.start);
    let data = bytes.slice(head.start..bytes.len()).filter(|_| got == len).ok_or_else(|| {
        Unfit::Bytes(format!("its shape needs {len} bytes, and it has {got}; was it cut off?"))
    })?;
    let (dtype, shape) = (head.dtype, head.shape.clone());
    let bytes = match shape[..] {
        [rows, columns] if head.fortran => {
            transposed(&data, rows, columns, dtype.bytes()).map_err(Unfit::Memory)?
        }
        _ => data,
    };
    Ok(Tensor { dtype, shape, bytes })
}

fn transposed(data: &[u8], rows: usize, columns: usize, element: usize) -> Result<Bytes, Error> {
    let mut buffer = Buffer::zeroed(data.len(), Pages::Small)?;
    let target = buffer.as_mut_slice();
    for (column, elements) in data.chunks_exact((rows * element).max(1)).enumerate() {
        for (row, from) in elements.chunks_exact(element).enumerate() {
            let at = (row * columns + column) * element;
            target[at..at + element].copy_from_slice(from);
        }
    }
    Ok(buffer.into())
}

/// `{'descr': '<i8', 'fortran_order': False, 'shape': (100,), }`
fn parse(header: &str) -> Result<(Dtype, Vec<usize>, bool), String> {
    let descr = field(header, "descr")?;
    let descr: String = descr.chars().skip(1).take_while(|c| *c != '\'').collect();
    let dtype = match descr.as_str() {
        "<f8" => Dtype::F64,
        "<f4" => Dtype::F32,
        "<f2" => Dtype::F16,
        "<i8" => Dtype::I64,
        "<i4" => Dtype::I32,
        "<i2" => Dtype::I16,
        "|i1" => Dtype::I8,
        "<u8" => Dtype::U64,
        "<u4" => Dtype::U32,
        "<u2" => Dtype::U16,
        "|u1" => Dtype::U8,
        "|b1" => Dtype::Bool,
        _ => return Err(format!("elements of type `{descr}` are not supported")),
    };
    let shape = field(header, "shape")?.strip_prefix('(').and_then(|s| s.split_once(')'));
    let (shape, _) = shape.ok_or("its shape is not a tuple")?;
    let sizes = shape.split(',').map(str::trim).filter(|size| !size.is_empty());
    let shape: Vec<usize> = sizes
        .map(|size| size.parse().map_err(|_| format!("`{size}` is not a size")))
        .collect::<Result<_, _>>()?;
    let fortran = field(header, "fortran_order")?.starts_with("True") && shape.len() > 1;
    if fortran && shape.len() > 2 {
        return Err("it is in Fortran order; save `numpy.ascontiguousarray(array)`".into());
    }
    Ok((dtype, shape, fortran))
}

fn field<'a>(header: &'a str, key: &str) -> Result<&'a str, String> {
    let found = header.split_once(&format!("'{key}':")).map(|(_, value)| value.trim_start());
    found.ok_or_else(|| format!("its header has no `{key}`"))
}

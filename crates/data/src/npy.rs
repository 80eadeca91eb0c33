//! One array as `numpy.save` writes it.

use std::path::Path;

use crate::map::Bytes;
use crate::tensor::byte_len;
use crate::{Dtype, Error, Tensor};

pub const MAGIC: &[u8] = b"\x93NUMPY";
/// Headers are a line of a few dozen bytes.
const HEADER_MAX: usize = 1 << 16;

/// The array as a tensor, mapped.
pub fn read(path: &Path, bytes: &Bytes) -> Result<Tensor, Error> {
    let bad = |problem: &str| Error::Trace {
        path: path.into(),
        problem: format!("not an array that can be read: {problem}"),
    };
    let cut_off = "it ends inside of its header";
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| bad("it is not of numpy.save"))?;
    let (len, fixed) = match rest {
        [1, _, low, high, ..] => (usize::from(u16::from_le_bytes([*low, *high])), 10),
        [2 | 3, _, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, 12),
        [] | [_] | [1..=3, ..] => return Err(bad(cut_off)),
        _ => return Err(bad("its version is unknown")),
    };
    if len > HEADER_MAX {
        return Err(bad("its header is too long"));
    }
    let start = fixed + len;
    let header = bytes.get(fixed..start).ok_or_else(|| bad(cut_off))?;
    let header = std::str::from_utf8(header).map_err(|_| bad("its header is not text"))?;
    let (dtype, shape) = parse(header).map_err(|problem| bad(&problem))?;
    let len = byte_len(dtype, &shape).ok_or_else(|| bad("its shape is too large"))?;
    if bytes.len() - start != len {
        let got = bytes.len() - start;
        return Err(bad(&format!("its shape needs {len} bytes and {got} are there")));
    }
    let data = bytes.slice(start..bytes.len()).ok_or_else(|| bad(cut_off))?;
    Ok(Tensor { dtype, shape, bytes: data })
}

/// `{'descr': '<i8', 'fortran_order': False, 'shape': (100,), }`
fn parse(header: &str) -> Result<(Dtype, Vec<usize>), String> {
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
    let (shape, _) = shape.ok_or("its shape is no tuple")?;
    let sizes = shape.split(',').map(str::trim).filter(|size| !size.is_empty());
    let shape: Vec<usize> = sizes
        .map(|size| size.parse().map_err(|_| format!("`{size}` is no size")))
        .collect::<Result<_, _>>()?;
    if field(header, "fortran_order")?.starts_with("True") && shape.len() > 1 {
        return Err("it is in Fortran's order; save `numpy.ascontiguousarray(array)`".into());
    }
    Ok((dtype, shape))
}

fn field<'a>(header: &'a str, key: &str) -> Result<&'a str, String> {
    let found = header.split_once(&format!("'{key}':")).map(|(_, value)| value.trim_start());
    found.ok_or_else(|| format!("its header does not say `{key}`"))
}

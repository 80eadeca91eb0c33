//! Arrays of NumPy and sparse matrices of SciPy in pickles, as Python 2 and 3 write them. They
//! are read from what the pickle describes; no code of either is needed or run.

use std::borrow::Cow;

use super::{Call, Pickle, Value};
use crate::map::{Buffer, Bytes, Pages};
use crate::tensor::byte_len;
use crate::{Dtype, Tensor};

/// For [`Pickle::read`]: the names that arrays, sparse matrices and dictionaries of lists need.
pub fn allow(module: &str, name: &str) -> Result<(), &'static str> {
    match (module, name) {
        ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct")
        | ("numpy.core.numeric" | "numpy._core.numeric", "_frombuffer")
        | ("numpy", "ndarray" | "dtype")
        | ("scipy.sparse.csr" | "scipy.sparse._csr", "csr_matrix" | "csr_array")
        | ("collections", "defaultdict" | "OrderedDict")
        | ("__builtin__" | "builtins", "list" | "object")
        | ("copy_reg" | "copyreg", "_reconstructor")
        | ("_codecs", "encode") => Ok(()),
        _ => Err("save plain arrays of NumPy and csr matrices of SciPy"),
    }
}

/// A sparse matrix in compressed rows. Only the presence of its parts is checked.
#[derive(Clone, Debug)]
pub struct Csr {
    pub shape: [usize; 2],
    pub offsets: Tensor,
    pub indices: Tensor,
    pub values: Tensor,
}

/// The matrix that a value describes, or why it describes none.
pub fn csr<'a>(pickle: &Pickle<'a>, value: Value<'a>) -> Result<Csr, String> {
    let none = "a csr matrix of SciPy is expected";
    let Call { callee, arguments, state } = pickle.call(value).ok_or(none)?;
    let class = match (callee, arguments) {
        ((_, "_reconstructor"), [Value::Global(_, class), ..]) => class,
        ((_, class), _) => class,
    };
    if !class.starts_with("csr_") {
        return Err(none.into());
    }
    let fields = state.and_then(|state| pickle.pairs(state)).ok_or(none)?;
    let field = |names: &[&str]| {
        let named = |key: &Value<'a>| matches!(text(*key), Some(key) if names.contains(&key));
        let found = fields.iter().find_map(|(key, value)| named(key).then_some(*value));
        found.ok_or_else(|| format!("the matrix has no `{}`", names[0]))
    };
    let array = |name| tensor(pickle, field(&[name])?).map_err(|why| format!("`{name}`: {why}"));
    let shape = pickle.sizes(field(&["_shape", "shape"])?);
    let shape = shape.and_then(|shape| <[usize; 2]>::try_from(shape).ok());
    Ok(Csr {
        shape: shape.ok_or("the shape of the matrix is not rows and columns")?,
        offsets: array("indptr")?,
        indices: array("indices")?,
        values: array("data")?,
    })
}

/// The array that a value describes, or why it describes none.
pub fn tensor<'a>(pickle: &Pickle<'a>, value: Value<'a>) -> Result<Tensor, String> {
    let none = "an array of NumPy is expected";
    let Call { callee, arguments, state } = pickle.call(value).ok_or(none)?;
    let (shape, kind, fortran, data) = match (callee.1, arguments, state) {
        ("_reconstruct", _, Some(state)) => match pickle.items(state) {
            Some([Value::Int(_), shape, kind, order, data]) => {
                (*shape, *kind, matches!(order, Value::Bool(true) | Value::Int(1)), *data)
            }
            _ => return Err(none.into()),
        },
        ("_frombuffer", [data, kind, shape, order], _) => {
            (*shape, *kind, text(*order) == Some("F"), *data)
        }
        _ => return Err(none.into()),
    };
    let dtype = dtype(pickle, kind)?;
    let shape = pickle.sizes(shape).ok_or("its shape is not a tuple of sizes")?;
    if fortran && shape.len() > 1 {
        return Err("it is in Fortran order; save `numpy.ascontiguousarray(array)`".into());
    }
    let data = raw(pickle, data).ok_or("its elements are not bytes")?;
    if byte_len(dtype, &shape) != Some(data.len()) {
        return Err(format!("its shape {shape:?} does not fit {} bytes", data.len()));
    }
    let mut buffer = Buffer::zeroed(data.len(), Pages::Small).map_err(|error| error.to_string())?;
    buffer.as_mut_slice().copy_from_slice(&data);
    Ok(Tensor { dtype, shape, bytes: Bytes::from(buffer) })
}

/// `dtype('i4', 0, 1)` with the state `(3, '<', …)`.
fn dtype<'a>(pickle: &Pickle<'a>, value: Value<'a>) -> Result<Dtype, String> {
    let none = "its type is not a dtype of NumPy";
    let Call { callee, arguments, state } = pickle.call(value).ok_or(none)?;
    let kind = arguments.first().and_then(|kind| text(*kind)).ok_or(none)?;
    if callee.1 != "dtype" {
        return Err(none.into());
    }
    let order = state.and_then(|state| pickle.items(state)?.get(1).copied()).and_then(text);
    let dtype = match kind {
        "f8" => Dtype::F64,
        "f4" => Dtype::F32,
        "f2" => Dtype::F16,
        "i8" => Dtype::I64,
        "i4" => Dtype::I32,
        "i2" => Dtype::I16,
        "i1" => Dtype::I8,
        "u8" => Dtype::U64,
        "u4" => Dtype::U32,
        "u2" => Dtype::U16,
        "u1" => Dtype::U8,
        "b1" => Dtype::Bool,
        _ => return Err(format!("elements of type `{kind}` are not supported")),
    };
    if order == Some(">") && dtype.bytes() > 1 {
        return Err("it is big-endian; save it again on a little-endian machine".into());
    }
    Ok(dtype)
}

fn text(value: Value<'_>) -> Option<&str> {
    match value {
        Value::Str(text) => Some(text),
        Value::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

/// Bytes as they are, as Python 2 writes them, or as Python 3 does for Python 2: Latin text and
/// a call to encode it.
fn raw<'a>(pickle: &Pickle<'a>, value: Value<'a>) -> Option<Cow<'a, [u8]>> {
    match value {
        Value::Bytes(bytes) => Some(bytes.into()),
        Value::Str(text) => Some(text.as_bytes().into()),
        value => match pickle.call(value)? {
            Call {
                callee: (_, "encode"),
                arguments: [Value::Str(latin), Value::Str("latin1")],
                ..
            } => latin.chars().map(|c| u8::try_from(c).ok()).collect(),
            _ => None,
        },
    }
}

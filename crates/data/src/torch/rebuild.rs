//! From the calls that a checkpoint describes to tensors and single numbers.

use std::path::Path;

use crate::map::{Buffer, Bytes, Pages};
use crate::pickle::{Call, Node, Pickle, Value};
use crate::tensor::byte_len;
use crate::torch::{STORAGES, Storages, is_packed_bytes};
use crate::{Dtype, Error, Tensor};

/// Upper bound on the bytes of all tensors of one file that have to be copied.
const COPIED_MAX: usize = 1 << 30;
/// Upper bound on wrappers around a tensor; PyTorch itself writes one, a parameter.
const WRAPPERS_MAX: usize = 4;

/// Makes tensors of the calls in a checkpoint's pickle, from storages in the mapped file.
pub struct Rebuild<'f, 'a> {
    path: &'f Path,
    pickle: &'f Pickle<'a>,
    storages: &'f Storages<'f>,
    copied: usize,
}

/// A tensor as PyTorch describes it: a window with strides on a storage, all in elements.
struct View {
    dtype: Dtype,
    storage: Bytes,
    offset: usize,
    shape: Vec<usize>,
    strides: Vec<usize>,
}

impl<'f, 'a> Rebuild<'f, 'a> {
    pub fn new(path: &'f Path, pickle: &'f Pickle<'a>, storages: &'f Storages<'f>) -> Self {
        Self { path, pickle, storages, copied: 0 }
    }

    pub fn tensor(&mut self, value: Value<'a>, name: &str) -> Result<Tensor, Error> {
        let path = self.path;
        let bad = |problem: String| Error::Tensor { path: path.into(), name: name.into(), problem };
        let Some(arguments) = self.tensor_arguments(value) else {
            return Err(bad("is a value of an unknown kind; save plain tensors".into()));
        };
        let [storage, Value::Int(offset), shape, strides, ..] = *arguments else {
            return Err(bad("is described with wrong arguments; is the file damaged?".into()));
        };
        let Some((dtype, key)) = storage_of(self.pickle, storage) else {
            return Err(bad("has a storage of an unknown kind; save plain tensors".into()));
        };
        let (Ok(offset), Some(shape), Some(strides)) =
            (usize::try_from(offset), self.pickle.sizes(shape), self.pickle.sizes(strides))
        else {
            return Err(bad("has an offset, a size or a stride that is not a count".into()));
        };
        let storage = (self.storages)(key)?;
        let view = View { dtype, storage, offset, shape, strides };
        let Some(end) = view.end() else {
            return Err(bad("is described with an impossible size".into()));
        };
        if end > view.storage.len() / dtype.bytes() {
            return Err(bad("reaches past the end of its storage; was the file cut off?".into()));
        }
        if !view.is_contiguous() {
            let bytes = view.bytes();
            let total = self.copied.checked_add(bytes).filter(|total| *total <= COPIED_MAX);
            self.copied = total.ok_or_else(|| {
                bad(format!(
                    "is a view with strides, and its copy of {bytes} bytes would be too much; \
                     save `tensor.contiguous()`"
                ))
            })?;
        }
        view.into_tensor()
    }

    /// The arguments of `_rebuild_tensor_v2`, also where the tensor is inside of a parameter or of
    /// one of TorchRec's wrappers around bytes.
    fn tensor_arguments(&self, mut value: Value<'a>) -> Option<&'f [Value<'a>]> {
        for _ in 0..WRAPPERS_MAX {
            let Call { callee, arguments, .. } = self.pickle.call(value)?;
            value = match (callee, arguments) {
                (("torch._utils", "_rebuild_tensor_v2"), _) => return Some(arguments),
                (
                    ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state"),
                    [inner, ..],
                ) => *inner,
                (
                    ("torch._tensor", "_rebuild_from_type_v2"),
                    [_, Value::Global(module, class), _, state],
                ) if is_packed_bytes((module, class)) => self.pickle.field(*state, "elem")?,
                _ => return None,
            };
        }
        None
    }

    /// A single value that is not a tensor, as text.
    pub fn scalar(&self, value: Value<'a>) -> Option<String> {
        let Call { callee, arguments, .. } = self.pickle.call(value)?;
        match (callee, arguments) {
            (("torch", "device"), [Value::Str(name), ..]) => Some((*name).into()),
            (("torch", "Size"), [sizes]) => Some(format!("{:?}", self.pickle.sizes(*sizes)?)),
            ((_, "scalar"), [dtype, value]) => {
                let Call {
                    callee: ("numpy", "dtype"),
                    arguments: [Value::Str(kind), ..],
                    state: Some(state),
                } = self.pickle.call(*dtype)?
                else {
                    return None;
                };
                let big = self.pickle.items(state)?.get(1) == Some(&Value::Str(">"));
                number(kind, &self.bytes(*value)?, big)
            }
            _ => None,
        }
    }

    /// Bytes as they are, or as older protocols write them: Latin text and a call to encode it.
    fn bytes(&self, value: Value<'a>) -> Option<Vec<u8>> {
        if let Value::Bytes(bytes) = value {
            return Some(bytes.into());
        }
        match self.pickle.call(value)? {
            Call {
                callee: ("_codecs", "encode"),
                arguments: [Value::Str(text), Value::Str("latin1")],
                ..
            } => text.chars().take(16).map(|c| u8::try_from(c).ok()).collect(),
            _ => None,
        }
    }
}

/// The element type and the key of a storage: `("storage", torch.FloatStorage, key, device, …)`.
pub fn storage_of<'a>(pickle: &Pickle<'a>, value: Value<'a>) -> Option<(Dtype, &'a str)> {
    let Value::Node(id) = value else { return None };
    let Node::Persistent(tuple) = pickle.node(id) else { return None };
    storage_in(pickle, *tuple)
}

/// As [`storage_of`], from the tuple itself.
pub fn storage_in<'a>(pickle: &Pickle<'a>, tuple: Value<'a>) -> Option<(Dtype, &'a str)> {
    match pickle.items(tuple)? {
        [Value::Str("storage"), Value::Global("torch", class), Value::Str(key), ..] => {
            let (_, dtype) = STORAGES.into_iter().find(|(storage, _)| storage == class)?;
            Some((dtype, key))
        }
        _ => None,
    }
}

/// A NumPy scalar as text.
fn number(kind: &str, bytes: &[u8], big_endian: bool) -> Option<String> {
    let mut bytes = bytes.to_vec();
    if big_endian {
        bytes.reverse();
    }
    fn array<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
        bytes.try_into().ok()
    }
    Some(match kind {
        "f8" => f64::from_le_bytes(array(&bytes)?).to_string(),
        "f4" => f32::from_le_bytes(array(&bytes)?).to_string(),
        "i8" => i64::from_le_bytes(array(&bytes)?).to_string(),
        "i4" => i32::from_le_bytes(array(&bytes)?).to_string(),
        "b1" => (array::<1>(&bytes)? != [0]).to_string(),
        _ => return None,
    })
}

impl View {
    /// One past the last element that is used; `None` where the sizes overflow or disagree.
    fn end(&self) -> Option<usize> {
        byte_len(self.dtype, &self.shape)?;
        if self.shape.len() != self.strides.len() {
            return None;
        }
        if self.shape.contains(&0) {
            return Some(0);
        }
        let mut last = self.offset;
        for (size, stride) in self.shape.iter().zip(&self.strides) {
            last = last.checked_add((size - 1).checked_mul(*stride)?)?;
        }
        last.checked_add(1)
    }

    fn bytes(&self) -> usize {
        byte_len(self.dtype, &self.shape).unwrap_or(usize::MAX)
    }

    fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (size, stride) in self.shape.iter().zip(&self.strides).rev() {
            if *size != 1 && *stride != expected {
                return self.shape.contains(&0);
            }
            expected = expected.saturating_mul(*size);
        }
        true
    }

    /// Only for views whose end is inside of their storage.
    fn into_tensor(self) -> Result<Tensor, Error> {
        let (element, len) = (self.dtype.bytes(), self.bytes());
        let contiguous = self.is_contiguous();
        let start = if len == 0 { 0 } else { self.offset * element };
        let window = self.storage.slice(start..start + len).filter(|_| contiguous);
        let bytes = match window {
            Some(window) => window,
            None => self.gathered(len)?,
        };
        Ok(Tensor { dtype: self.dtype, shape: self.shape, bytes })
    }

    /// The elements in row-major order, copied.
    fn gathered(&self, len: usize) -> Result<Bytes, Error> {
        let element = self.dtype.bytes();
        let mut buffer = Buffer::zeroed(len, Pages::Small)?;
        let mut index = vec![0; self.shape.len()];
        let mut at = self.offset;
        for target in buffer.as_mut_slice().chunks_exact_mut(element) {
            target.copy_from_slice(&self.storage[at * element..(at + 1) * element]);
            // Like an odometer: the last dimension turns fastest.
            for dimension in (0..self.shape.len()).rev() {
                index[dimension] += 1;
                at += self.strides[dimension];
                if index[dimension] < self.shape[dimension] {
                    break;
                }
                at -= self.strides[dimension] * self.shape[dimension];
                index[dimension] = 0;
            }
        }
        Ok(buffer.into())
    }
}

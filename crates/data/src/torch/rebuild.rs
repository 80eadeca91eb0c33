//! From the calls that a checkpoint describes to tensors and single numbers.

use crate::map::{Buffer, Bytes, Pages};
use crate::pickle::{Node, NodeId, Pickle, Value};
use crate::tensor::byte_len;
use crate::torch::STORAGES;
use crate::torch::archive::Archive;
use crate::{Dtype, Error, Tensor};

/// What all tensors of one file together may take to be laid out anew.
const COPIED_MAX: usize = 1 << 30;
/// Deeper than PyTorch itself nests: a parameter holds a tensor.
const PARAMETERS_MAX: usize = 4;

pub struct Rebuild<'a> {
    archive: &'a Archive<'a>,
    pickle: &'a Pickle<'a>,
    copied: usize,
}

/// A tensor as PyTorch has it: a window with strides on a storage, all in elements.
struct View {
    dtype: Dtype,
    storage: Bytes,
    offset: usize,
    shape: Vec<usize>,
    strides: Vec<usize>,
}

impl<'a> Rebuild<'a> {
    pub fn new(archive: &'a Archive<'a>, pickle: &'a Pickle<'a>) -> Self {
        Self { archive, pickle, copied: 0 }
    }

    pub fn tensor(&mut self, id: NodeId, name: &str) -> Result<Tensor, Error> {
        let bad = |archive: &Archive<'_>, problem: &str| Error::Tensor {
            path: archive.path.into(),
            name: name.into(),
            problem: problem.into(),
        };
        let Some(arguments) = self.tensor_arguments(id) else {
            return Err(bad(self.archive, "is none: it is a value of a kind not understood"));
        };
        let [Value::Node(storage), Value::Int(offset), shape, strides, ..] = *arguments else {
            return Err(bad(self.archive, "is described with wrong arguments"));
        };
        let Some((dtype, key)) = self.storage(storage) else {
            return Err(bad(self.archive, "has no storage that is understood"));
        };
        let (Ok(offset), Some(shape), Some(strides)) =
            (usize::try_from(offset), self.sizes(shape), self.sizes(strides))
        else {
            return Err(bad(self.archive, "has an offset, a size or a stride that is no count"));
        };
        let storage = self.archive.file(&format!("data/{key}"))?;
        let view = View { dtype, storage, offset, shape, strides };
        let Some(end) = view.end() else {
            return Err(bad(self.archive, "is described with a size that cannot be"));
        };
        if end > view.storage.len() / dtype.bytes() {
            return Err(bad(self.archive, "reaches past the end of its storage"));
        }
        let copied = |bytes| Error::Tensor {
            path: self.archive.path.into(),
            name: name.into(),
            problem: format!(
                "is a view with strides, and to lay out {bytes} bytes more is too much; save \
                 `tensor.contiguous()`"
            ),
        };
        let bytes = view.bytes();
        if !view.is_contiguous() {
            let total = self.copied.checked_add(bytes).filter(|total| *total <= COPIED_MAX);
            self.copied = total.ok_or_else(|| copied(bytes))?;
        }
        view.into_tensor()
    }

    /// The arguments of `_rebuild_tensor_v2`, also when it is inside of a parameter.
    fn tensor_arguments(&self, mut id: NodeId) -> Option<&'a [Value<'a>]> {
        for _ in 0..PARAMETERS_MAX {
            let (callee, arguments, _) = self.call(id)?;
            match (callee, arguments) {
                (("torch._utils", "_rebuild_tensor_v2"), _) => return Some(arguments),
                (("torch._utils", "_rebuild_parameter"), [Value::Node(inner), ..]) => id = *inner,
                _ => return None,
            }
        }
        None
    }

    #[expect(
        clippy::type_complexity,
        reason = "a call taken apart: what, with what, and its state"
    )]
    fn call(&self, id: NodeId) -> Option<((&'a str, &'a str), &'a [Value<'a>], Option<Value<'a>>)> {
        match self.pickle.node(id) {
            Node::Call { callee, arguments, state } => {
                Some((*callee, self.pickle.items(Value::Node(*arguments))?, *state))
            }
            _ => None,
        }
    }

    /// `("storage", torch.FloatStorage, key, device, elements)`
    fn storage(&self, id: NodeId) -> Option<(Dtype, &'a str)> {
        let Node::Persistent(tuple) = self.pickle.node(id) else { return None };
        match self.pickle.items(*tuple)? {
            [Value::Str("storage"), Value::Global("torch", class), Value::Str(key), ..] => {
                let (_, dtype) = STORAGES.into_iter().find(|(storage, _)| storage == class)?;
                Some((dtype, key))
            }
            _ => None,
        }
    }

    fn sizes(&self, value: Value<'a>) -> Option<Vec<usize>> {
        let items = self.pickle.items(value)?.iter();
        items
            .map(|item| if let Value::Int(n) = item { (*n).try_into().ok() } else { None })
            .collect()
    }

    /// What is no tensor but a single value, as text.
    pub fn scalar(&self, id: NodeId) -> Option<String> {
        let (callee, arguments, _) = self.call(id)?;
        match (callee, arguments) {
            (("torch", "device"), [Value::Str(name), ..]) => Some((*name).into()),
            (("torch", "Size"), [sizes]) => Some(format!("{:?}", self.sizes(*sizes)?)),
            ((_, "scalar"), [Value::Node(dtype), value]) => {
                let (("numpy", "dtype"), [Value::Str(kind), ..], Some(state)) =
                    self.call(*dtype)?
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
        match value {
            Value::Bytes(bytes) => Some(bytes.into()),
            Value::Node(id) => match self.call(id)? {
                (("_codecs", "encode"), [Value::Str(text), Value::Str("latin1")], _) => {
                    text.chars().take(16).map(|c| u8::try_from(c).ok()).collect()
                }
                _ => None,
            },
            _ => None,
        }
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
    /// One past the last element that is used; `None` where the numbers make no sense.
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

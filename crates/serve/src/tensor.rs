//! Tensors as they arrive. Values stay in the buffer that they were received in wherever their
//! alignment allows it.

use std::marker::PhantomData;

use bytemuck::{AnyBitPattern, NoUninit};
use bytes::Bytes;

/// The element types that models take and return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Datatype {
    Fp32,
    Int32,
    Int64,
}

/// A tensor of a request. Nothing of it has been checked against a model.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: String,
    /// As the client wrote it; see [`Datatype::from_name`].
    pub datatype: String,
    pub shape: Vec<i64>,
    pub data: Data,
}

/// The values of a tensor.
#[derive(Clone, Debug)]
pub enum Data {
    /// Little-endian elements, row after row.
    Raw(Bytes),
    Fp32(Vec<f32>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
}

/// Elements that are received or made: aligned either way.
#[derive(Clone, Debug)]
pub enum Array<T> {
    /// Bytes that are aligned for `T`, and a whole number of elements.
    Received(Bytes, PhantomData<T>),
    Made(Vec<T>),
}

impl Datatype {
    pub fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "FP32",
            Self::Int32 => "INT32",
            Self::Int64 => "INT64",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Fp32, Self::Int32, Self::Int64].into_iter().find(|known| known.name() == name)
    }

    pub fn bytes(self) -> usize {
        match self {
            Self::Fp32 | Self::Int32 => 4,
            Self::Int64 => 8,
        }
    }
}

impl Data {
    /// The number of elements if they are of this type; for raw bytes also that they are whole.
    pub fn elements(&self, datatype: Datatype) -> Option<usize> {
        match (self, datatype) {
            (Self::Raw(bytes), _) => {
                bytes.len().is_multiple_of(datatype.bytes()).then(|| bytes.len() / datatype.bytes())
            }
            (Self::Fp32(values), Datatype::Fp32) => Some(values.len()),
            (Self::Int32(values), Datatype::Int32) => Some(values.len()),
            (Self::Int64(values), Datatype::Int64) => Some(values.len()),
            _ => None,
        }
    }

    pub fn bytes(&self) -> usize {
        match self {
            Self::Raw(bytes) => bytes.len(),
            Self::Fp32(values) => values.len() * 4,
            Self::Int32(values) => values.len() * 4,
            Self::Int64(values) => values.len() * 8,
        }
    }
}

impl<T: AnyBitPattern + NoUninit> Array<T> {
    /// Whole elements of a buffer, which is copied only if it is not aligned for them.
    pub fn from_bytes(bytes: Bytes) -> Self {
        match bytemuck::try_cast_slice::<u8, T>(&bytes) {
            Ok(_) => Self::Received(bytes, PhantomData),
            Err(_) => Self::Made(bytemuck::pod_collect_to_vec::<u8, T>(&bytes)),
        }
    }

    /// Bytes that do not lie in the buffer that was received.
    pub fn made_bytes(&self) -> usize {
        match self {
            Self::Received(..) => 0,
            Self::Made(values) => size_of_val(&values[..]),
        }
    }
}

impl<T: AnyBitPattern> std::ops::Deref for Array<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Received(bytes, _) => bytemuck::cast_slice::<u8, T>(bytes),
            Self::Made(values) => values,
        }
    }
}

/// `[-1,4]`, as Triton writes shapes.
pub fn shown_shape(shape: &[i64]) -> String {
    let dims: Vec<String> = shape.iter().map(ToString::to_string).collect();
    format!("[{}]", dims.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_bytes_are_kept_and_others_are_copied() {
        let values: Vec<i64> = (0..4).collect();
        let mut padded = vec![0u8; 15];
        padded.extend(bytemuck::cast_slice::<i64, u8>(&values));
        let bytes = Bytes::from(padded);
        let mut received = 0;
        for start in 0..8 {
            let array = Array::<i64>::from_bytes(bytes.slice(start..start + 32));
            received += usize::from(matches!(array, Array::Received(..)));
            if start == 7 {
                assert_eq!(array[0] >> 8, 0, "shifted by eight bytes");
            }
        }
        assert_eq!(received, 1, "one of eight starts is aligned");
        assert_eq!(*Array::<i64>::from_bytes(bytes.slice(15..)), values);
    }
}

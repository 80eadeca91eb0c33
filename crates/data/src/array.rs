//! Slices whose elements are owned or lie in a mapped file. Readers need not care which.

use std::marker::PhantomData;
use std::ops::{Deref, Range};

use bytemuck::Pod;

use crate::map::Bytes;

/// A slice of `T`, owned or mapped.
#[derive(Clone)]
pub enum Array<T> {
    Owned(Vec<T>),
    Mapped(Mapped<T>),
}

/// Bytes that were checked to be whole, aligned elements.
#[derive(Clone)]
pub struct Mapped<T> {
    bytes: Bytes,
    of: PhantomData<T>,
}

impl<T: Pod> Array<T> {
    /// Uses the bytes of a file in place; `None` unless they are whole, aligned elements.
    pub fn map(bytes: Bytes) -> Option<Self> {
        bytemuck::try_cast_slice::<u8, T>(&bytes).ok()?;
        Some(Self::Mapped(Mapped { bytes, of: PhantomData }))
    }

    /// Some of the elements: in place where they are mapped, copied where they are owned. `None` if
    /// the range reaches past the end.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        match self {
            Self::Owned(elements) => Some(Self::Owned(elements.get(range)?.to_vec())),
            Self::Mapped(mapped) => {
                let byte = |element: usize| element.checked_mul(size_of::<T>());
                Self::map(mapped.bytes.slice(byte(range.start)?..byte(range.end)?)?)
            }
        }
    }

    pub fn is_mapped(&self) -> bool {
        matches!(self, Self::Mapped(_))
    }
}

impl<T> Mapped<T> {
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }
}

impl<T: Pod> Deref for Array<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Owned(elements) => elements,
            Self::Mapped(mapped) => bytemuck::cast_slice(&mapped.bytes),
        }
    }
}

impl<T> From<Vec<T>> for Array<T> {
    fn from(elements: Vec<T>) -> Self {
        Self::Owned(elements)
    }
}

impl<T: Pod> Default for Array<T> {
    fn default() -> Self {
        Self::Owned(vec![])
    }
}

impl<T: Pod> std::fmt::Debug for Array<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.is_mapped() { "mapped" } else { "owned" };
        write!(f, "Array({} elements, {kind})", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::{Buffer, Pages};

    #[test]
    fn slices_are_the_same_owned_or_in_place() {
        let mut buffer = Buffer::zeroed(40, Pages::Small).expect("memory");
        buffer.as_mut_slice().copy_from_slice(bytemuck::cast_slice(&[0_u64, 1, 2, 3, 4]));
        let mapped = Array::<u64>::map(buffer.into()).expect("whole elements");
        let owned = Array::from(vec![0_u64, 1, 2, 3, 4]);
        for array in [mapped, owned] {
            let slice = array.slice(1..4).expect("inside");
            assert_eq!((&slice[..], slice.is_mapped()), (&[1, 2, 3][..], array.is_mapped()));
            assert!(array.slice(5..5).expect("the end").is_empty());
            assert!(array.slice(3..6).is_none() && array.slice(usize::MAX..usize::MAX).is_none());
        }
    }
}

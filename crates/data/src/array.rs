//! Slices whose elements are owned or lie in a mapped file. Readers need not care which.

use std::marker::PhantomData;
use std::ops::Deref;

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

    pub fn is_mapped(&self) -> bool {
        matches!(self, Self::Mapped(_))
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

//! Arrays that are collected element by element and may not fit into memory. The elements of a long array go to a
//! temporary file, which is mapped once it is whole: the system can then drop its pages and read them again.
//!
//! The file lies in the directory that `TMPDIR` names, else in `/tmp`, and has no name from the moment it is opened,
//! so that it is gone with the process, however that ends.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use bytemuck::Pod;

use crate::map::Bytes;
use crate::{Array, Error};

/// Arrays up to this size stay in memory.
const MEMORY_BYTES: usize = 1 << 29;
/// What is written at once.
const WRITE_BYTES: usize = 8 << 20;

/// An array that is being collected.
pub struct Spill<T> {
    /// Elements that are not in the file yet.
    elements: Vec<T>,
    /// Upper bound on their number.
    most: usize,
    file: Option<(File, PathBuf)>,
}

impl<T: Pod> Default for Spill<T> {
    fn default() -> Self {
        Self::with_memory(MEMORY_BYTES)
    }
}

impl<T: Pod> Spill<T> {
    /// An empty array that leaves memory once it has more than so many bytes.
    pub fn with_memory(bytes: usize) -> Self {
        Self { elements: vec![], most: (bytes / size_of::<T>()).max(1), file: None }
    }

    /// Appends elements.
    pub fn extend(&mut self, mut elements: &[T]) -> Result<(), Error> {
        while !elements.is_empty() {
            let (now, later) =
                elements.split_at(elements.len().min(self.most - self.elements.len()));
            self.elements.extend_from_slice(now);
            elements = later;
            if self.elements.len() == self.most {
                self.write()?;
            }
        }
        Ok(())
    }

    /// Appends one element.
    pub fn push(&mut self, element: T) -> Result<(), Error> {
        self.elements.push(element);
        if self.elements.len() == self.most { self.write() } else { Ok(()) }
    }

    /// Moves the elements in memory to the file.
    fn write(&mut self) -> Result<(), Error> {
        let (file, path) = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(nameless_file()?),
        };
        file.write_all(bytemuck::cast_slice(&self.elements)).map_err(Error::io("write", path))?;
        self.elements.clear();
        self.most = (WRITE_BYTES / size_of::<T>()).max(1).min(self.most);
        self.elements.shrink_to(self.most);
        Ok(())
    }

    /// The whole array: owned, or mapped if it was long.
    pub fn finish(mut self) -> Result<Array<T>, Error> {
        if self.file.is_none() {
            return Ok(self.elements.into());
        }
        self.write()?;
        let Some((file, path)) = self.file else { return Ok(Array::default()) };
        let bytes = Bytes::map_file(&file, &path)?;
        Ok(Array::map(bytes).expect("a file of whole elements, mapped at the start of a page"))
    }
}

/// A new file that has lost its name already. The path is for messages.
fn nameless_file() -> Result<(File, PathBuf), Error> {
    static FILES: AtomicU32 = AtomicU32::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let name = format!("hither-{}-{number}.spill", std::process::id());
    let path = std::env::temp_dir().join(name);
    let open = || File::options().read(true).write(true).create_new(true).open(&path);
    let file = open().map_err(Error::io("create", &path))?;
    fs::remove_file(&path).map_err(Error::io("remove", &path))?;
    Ok((file, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_arrays_stay_in_memory_and_long_ones_are_mapped() {
        for (len, is_mapped) in
            [(0_u32, false), (99, false), (100, true), (101, true), (12_345, true)]
        {
            let expected: Vec<[u32; 2]> = (0..len).map(|n| [n, n + 1]).collect();
            let mut spill = Spill::with_memory(100 * 8);
            let (first, rest) = expected.split_at(len as usize / 3);
            first.iter().try_for_each(|pair| spill.push(*pair)).expect("room");
            rest.chunks(77).try_for_each(|pairs| spill.extend(pairs)).expect("room");
            let found = spill.finish().expect("a file");
            assert_eq!((&found[..], found.is_mapped()), (&expected[..], is_mapped));
        }
    }
}

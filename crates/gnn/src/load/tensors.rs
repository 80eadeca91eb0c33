//! The tensors of a safetensors file in one of our own formats, used where they lie.

use std::path::{Path, PathBuf};

use bytemuck::Pod;
use hither_data::{Array, Checkpoint, Dtype, Tensor};

use super::bad;
use crate::Error;

pub(crate) struct TensorFile {
    pub path: PathBuf,
    checkpoint: Checkpoint,
}

impl TensorFile {
    /// Maps a file whose metadata name this format and one of these versions.
    pub fn open(path: &Path, format: &str, versions: &[&str]) -> Result<Self, Error> {
        let file = Self { path: path.into(), checkpoint: Checkpoint::open(path)? };
        let found = (file.text("format")?, file.text("version")?);
        if found.0 != format || !versions.contains(&found.1) {
            let problem = format!("its format is {} {}", found.0, found.1);
            let expected = versions.join(" or ");
            return Err(file.bad(format!("{problem}; expected {format} {expected}")));
        }
        Ok(file)
    }

    pub fn bad(&self, problem: impl Into<String>) -> Error {
        bad(&self.path, problem)
    }

    /// An entry of the metadata, if it is there.
    pub fn find_text(&self, key: &str) -> Option<&str> {
        self.checkpoint.metadata.get(key).map(String::as_str)
    }

    pub fn text(&self, key: &str) -> Result<&str, Error> {
        self.find_text(key).ok_or_else(|| {
            self.bad(format!("its metadata have no `{key}`, so Hither did not write it"))
        })
    }

    pub fn number(&self, key: &str) -> Result<usize, Error> {
        let value = self.text(key)?;
        value.parse().map_err(|_| self.bad(format!("its `{key}` is {value}; expected a number")))
    }

    pub fn has(&self, name: &str) -> bool {
        self.checkpoint.tensors.contains_key(name)
    }

    pub fn tensor(&self, name: &str) -> Result<&Tensor, Error> {
        let tensor = self.checkpoint.tensors.get(name);
        tensor.ok_or_else(|| self.bad(format!("tensor `{name}` is missing")))
    }

    /// A tensor's elements, in place.
    pub fn array<T: Element>(&self, name: &str) -> Result<Array<T>, Error> {
        let tensor = self.tensor(name)?;
        let problem = |problem: String| self.bad(format!("tensor `{name}` {problem}"));
        if tensor.dtype != T::DTYPE {
            return Err(problem(format!("is {}; expected {}", tensor.dtype, T::DTYPE)));
        }
        let mapped = Array::map(tensor.bytes.clone());
        mapped.ok_or_else(|| problem("is not aligned in the file; write the file again".into()))
    }
}

/// Types that tensors are used as.
pub(crate) trait Element: Pod {
    const DTYPE: Dtype;
}

impl Element for u64 {
    const DTYPE: Dtype = Dtype::U64;
}
impl Element for u32 {
    const DTYPE: Dtype = Dtype::U32;
}
impl Element for u8 {
    const DTYPE: Dtype = Dtype::U8;
}
impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;
}

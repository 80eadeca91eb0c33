//! Checkpoints of `torch.distributed.checkpoint`: a directory with `.metadata`, a pickle that says
//! which chunk of which tensor lies where, and files of chunks, each as `torch.save` writes a tensor.
//! A tensor of one chunk stays mapped; a tensor of several chunks is put together in memory.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use crate::map::{Buffer, Bytes, Pages};
use crate::pickle::{Call, Pickle, Value};
use crate::tensor::{byte_len, plain_name};
use crate::{Checkpoint, Error, Tensor};

pub const METADATA: &str = ".metadata";
/// Upper bound on the chunks of one tensor: one per process of a large cluster.
const CHUNKS_MAX: usize = 4096;

pub fn read(dir: &Path) -> Result<Checkpoint, Error> {
    let path = dir.join(METADATA);
    let bytes = Bytes::map(&path)?;
    let pickle = Pickle::read(&bytes, allow)
        .map_err(|source| Error::Pickle { path: path.clone(), source })?;
    let bad = || Error::Distributed { path: path.clone(), problem: "it describes no tensors" };
    let [tensors, places] = ["state_dict_metadata", "storage_data"]
        .map(|name| pickle.pairs(attribute(&pickle, pickle.root, name)?));
    let (tensors, places) = tensors.zip(places).ok_or_else(bad)?;
    let mut chunks = Chunks { dir, places: HashMap::new(), files: HashMap::new(), copied: 0 };
    for (index, info) in places {
        let place = Place::new(&pickle, *index, *info);
        let (name, offsets, place) = place.ok_or_else(|| Error::Distributed {
            path: path.clone(),
            problem: "it describes a chunk in a way that is not understood, such as compressed",
        })?;
        chunks.places.insert((name, offsets), place);
    }
    let mut found = BTreeMap::new();
    for (name, info) in tensors {
        let (Value::Str(name), Some(call)) = (name, pickle.call(*info)) else {
            return Err(bad());
        };
        // Values other than tensors are pickles of their own, which nobody needs.
        if call.callee.1 == "TensorStorageMetadata" {
            let shape = Shape::new(&pickle, *info).ok_or_else(bad)?;
            found.insert(name.to_string(), chunks.tensor(name, &shape)?);
        }
    }
    // Processes are listed one after the other: the order of the tensors is not that of the model.
    Ok(Checkpoint { path: dir.into(), tensors: found, metadata: BTreeMap::new(), order: None })
}

fn allow(module: &str, name: &str) -> Result<(), &'static str> {
    match (module, name) {
        ("torch.serialization", "_get_layout") => Ok(()),
        ("torch", _) | ("pathlib" | "pathlib._local", _) => Ok(()),
        _ if module.starts_with("torch.distributed.") => Ok(()),
        _ => Err("save it again with torch.distributed.checkpoint of a current PyTorch"),
    }
}

/// An attribute of an object.
fn attribute<'a>(pickle: &Pickle<'a>, object: Value<'a>, name: &str) -> Option<Value<'a>> {
    let Call { state, .. } = pickle.call(object)?;
    pickle.field(state?, name)
}

/// The size of a tensor, and the offsets and sizes of its chunks.
struct Shape {
    size: Vec<usize>,
    chunks: Vec<(Vec<usize>, Vec<usize>)>,
}

impl Shape {
    fn new<'a>(pickle: &Pickle<'a>, info: Value<'a>) -> Option<Self> {
        let sizes = |object, name| pickle.sizes(attribute(pickle, object, name)?);
        let chunk = |chunk: &Value<'a>| Some((sizes(*chunk, "offsets")?, sizes(*chunk, "sizes")?));
        let chunks = pickle.items(attribute(pickle, info, "chunks")?)?;
        let mut chunks: Vec<_> = chunks.iter().map(chunk).collect::<Option<_>>()?;
        let size = sizes(info, "size")?;
        // A process without a share of the tensor may list an empty chunk and store none.
        if !size.contains(&0) {
            chunks.retain(|(_, sizes)| !sizes.contains(&0));
        }
        Some(Self { size, chunks })
    }

    /// Whether every chunk lies inside and none overlaps another.
    fn is_sound(&self) -> bool {
        let axes = |(offsets, sizes): &(Vec<usize>, Vec<usize>)| {
            offsets.len() == self.size.len()
                && sizes.len() == self.size.len()
                && (offsets.iter().zip(sizes).zip(&self.size))
                    .all(|((at, len), size)| at.checked_add(*len).is_some_and(|end| end <= *size))
        };
        let apart = |a: &(Vec<usize>, Vec<usize>), b: &(Vec<usize>, Vec<usize>)| {
            (0..self.size.len()).any(|d| a.0[d] + a.1[d] <= b.0[d] || b.0[d] + b.1[d] <= a.0[d])
        };
        (1..=CHUNKS_MAX).contains(&self.chunks.len())
            && self.chunks.iter().all(axes)
            && self
                .chunks
                .iter()
                .enumerate()
                .all(|(i, a)| self.chunks[..i].iter().all(|b| apart(a, b)))
    }
}

/// Where a chunk lies.
struct Place<'a> {
    file: &'a str,
    offset: usize,
    len: usize,
}

impl<'a> Place<'a> {
    /// The tensor's name, the chunk's offsets in it, and its place. `None` where it is not a plain
    /// range of a file.
    fn new(
        pickle: &Pickle<'a>,
        index: Value<'a>,
        info: Value<'a>,
    ) -> Option<(&'a str, Option<Vec<usize>>, Self)> {
        let Some(Value::Str(name)) = attribute(pickle, index, "fqn") else { return None };
        let offsets = attribute(pickle, index, "offset").and_then(|offset| pickle.sizes(offset));
        let transforms = attribute(pickle, info, "transform_descriptors");
        if transforms.is_some_and(|list| pickle.items(list).is_some_and(|list| !list.is_empty())) {
            return None;
        }
        let number = |name| match attribute(pickle, info, name) {
            Some(Value::Int(number)) => usize::try_from(number).ok(),
            _ => None,
        };
        let Some(Value::Str(file)) = attribute(pickle, info, "relative_path") else { return None };
        Some((name, offsets, Self { file, offset: number("offset")?, len: number("length")? }))
    }
}

struct Chunks<'a> {
    dir: &'a Path,
    places: HashMap<(&'a str, Option<Vec<usize>>), Place<'a>>,
    files: HashMap<&'a str, Bytes>,
    /// Bytes of tensors that were put together so far.
    copied: usize,
}

impl<'a> Chunks<'a> {
    fn tensor(&mut self, name: &str, shape: &Shape) -> Result<Tensor, Error> {
        let bad = |dir: &Path, problem: &str| Error::Tensor {
            path: dir.into(),
            name: name.into(),
            problem: problem.into(),
        };
        if !shape.is_sound() {
            return Err(bad(self.dir, "has chunks that overlap or lie outside of it"));
        }
        let mut parts = Vec::with_capacity(shape.chunks.len());
        for (offsets, sizes) in &shape.chunks {
            let part = self.chunk(name, offsets)?;
            if part.shape != *sizes {
                return Err(bad(self.dir, "has a chunk of another size than .metadata says"));
            }
            parts.push(part);
        }
        if let [whole] = &parts[..]
            && whole.shape == shape.size
        {
            return Ok(whole.clone());
        }
        let dtype = parts[0].dtype;
        let total: usize = parts.iter().map(|part| part.bytes.len()).sum();
        if parts.iter().any(|part| part.dtype != dtype)
            || byte_len(dtype, &shape.size) != Some(total)
        {
            return Err(bad(self.dir, "is not whole: chunks are missing"));
        }
        // A file may name a chunk many times: never copy more than the files hold.
        self.copied = self.copied.saturating_add(total);
        if self.copied > self.files.values().map(|file| file.len()).sum() {
            return Err(bad(self.dir, "repeats chunks of other tensors"));
        }
        let mut buffer = Buffer::zeroed(total, Pages::Small)?;
        for ((offsets, _), part) in shape.chunks.iter().zip(&parts) {
            place(part, offsets, &shape.size, buffer.as_mut_slice());
        }
        Ok(Tensor { dtype, shape: shape.size.clone(), bytes: buffer.into() })
    }

    /// One chunk: a tensor as `torch.save` writes it, inside of a larger file.
    fn chunk(&mut self, name: &str, offsets: &[usize]) -> Result<Tensor, Error> {
        let missing = |problem: &str| Error::Tensor {
            path: self.dir.join(METADATA),
            name: name.into(),
            problem: problem.into(),
        };
        let place = self.places.get(&(name, Some(offsets.to_vec())));
        let place = place.ok_or_else(|| missing("has a chunk that lies nowhere"))?;
        let (file, offset) = (place.file, place.offset);
        let end = offset.checked_add(place.len);
        if !plain_name(file) {
            return Err(missing("lies in a file outside of the directory"));
        }
        let path = self.dir.join(file);
        if !self.files.contains_key(file) {
            self.files.insert(file, Bytes::map(&path)?);
        }
        let bytes = end.and_then(|end| self.files[file].slice(offset..end));
        let bytes = bytes.ok_or_else(|| Error::Tensor {
            path: path.clone(),
            name: name.into(),
            problem: "ends behind the file; was it cut off?".into(),
        })?;
        let mut saved = super::read(&path, &bytes)?;
        let tensor = saved.tensors.remove("0");
        tensor.ok_or_else(|| missing("has a chunk that is not a tensor"))
    }
}

/// Copies a chunk to its place in a tensor of this shape, run by run of the last dimension.
fn place(part: &Tensor, offsets: &[usize], shape: &[usize], out: &mut [u8]) {
    let element = part.dtype.bytes();
    let run = part.shape.last().copied().unwrap_or(1) * element;
    if run == 0 {
        return;
    }
    for (index, bytes) in part.bytes.chunks_exact(run).enumerate() {
        // The run's position in the chunk, dimension by dimension from the last but one.
        let (mut rest, mut at, mut stride) = (index, 0, 1);
        for d in (0..shape.len()).rev() {
            let position = if d + 1 == shape.len() { 0 } else { rest % part.shape[d] };
            if d + 1 < shape.len() {
                rest /= part.shape[d];
            }
            at += (offsets[d] + position) * stride;
            stride *= shape[d];
        }
        out[at * element..][..run].copy_from_slice(bytes);
    }
}

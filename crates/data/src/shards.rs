//! Checkpoints of several safetensors files beside an index, as Hugging Face's libraries write them:
//! `model.safetensors.index.json` names the file of each tensor.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use crate::map::Bytes;
use crate::tensor::plain_name;
use crate::{Checkpoint, Error, safetensors};

pub const SUFFIX: &str = ".safetensors.index.json";
/// Upper bound; an index has a line per tensor.
const INDEX_MAX: usize = 100_000_000;
const WEIGHT_MAP: &str = "weight_map";

pub fn read(path: &Path, index: &[u8]) -> Result<Checkpoint, Error> {
    let bad = |problem: String| Error::Index { path: path.into(), problem };
    if index.len() > INDEX_MAX {
        return Err(bad(format!("it has more than {INDEX_MAX} bytes")));
    }
    let index: serde_json::Value = serde_json::from_slice(index)
        .map_err(|error| bad(format!("it is not valid JSON: {error}")))?;
    let files = index.get(WEIGHT_MAP).and_then(|map| map.as_object());
    let files = files.ok_or_else(|| bad(format!("it has no `{WEIGHT_MAP}`")))?;
    let dir = path.parent().unwrap_or(Path::new(""));
    let mut shards: HashMap<&str, Checkpoint> = HashMap::new();
    let mut tensors = BTreeMap::new();
    for (name, file) in files {
        let file = file.as_str().filter(|file| plain_name(file));
        let file = file.ok_or_else(|| {
            bad(format!("tensor `{name}`: expected the name of a file in the same directory"))
        })?;
        if !shards.contains_key(file) {
            let shard = dir.join(file);
            shards.insert(file, safetensors::read(&shard, &Bytes::map(&shard)?)?);
        }
        let tensor = shards[file].tensors.get(name).cloned();
        let tensor = tensor.ok_or_else(|| {
            bad(format!("it places tensor `{name}` in {file}, which has no such tensor"))
        })?;
        tensors.insert(name.clone(), tensor);
    }
    Ok(Checkpoint { path: path.into(), tensors, metadata: BTreeMap::new(), order: None })
}

//! The format of `torch.save` before PyTorch 1.6: five pickles one behind the other (a magic number,
//! a version, facts of the machine, the object, the keys of its storages), then each storage as a
//! count of elements and the elements.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::{allow, flatten, rebuild};
use crate::map::Bytes;
use crate::pickle::{Node, Pickle, Value};
use crate::{Checkpoint, Dtype, Error};

/// The first pickle: an integer of ten bytes, behind protocol 2.
pub const MAGIC: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
const VERSION: i64 = 1001;

pub fn read(path: &Path, bytes: &Bytes) -> Result<Checkpoint, Error> {
    let mut stream = Stream { path, bytes, at: MAGIC.len() };
    if stream.pickle()?.root != Value::Int(VERSION) {
        return Err(stream.bad("its version is unknown; save it again with a newer PyTorch"));
    }
    let machine = stream.pickle()?;
    if machine.field(machine.root, "little_endian") == Some(Value::Bool(false)) {
        let (kind, remedy) = ("big-endian", "save it again on a little-endian machine");
        return Err(Error::WrongKind { path: path.into(), kind, remedy });
    }
    let object = stream.pickle()?;
    let keys = stream.pickle()?;
    let keys = keys.items(keys.root).ok_or_else(|| stream.bad("it has no list of storages"))?;
    let dtypes = dtypes(&object).ok_or_else(|| {
        stream.bad("it has storages that are parts of others; save it again with a newer PyTorch")
    })?;
    let mut storages = HashMap::new();
    for key in keys {
        let dtype = match key {
            Value::Str(key) => dtypes.get(key).map(|dtype| (*key, *dtype)),
            _ => None,
        };
        let (key, dtype) = dtype.ok_or_else(|| stream.bad("it has a storage of no tensor"))?;
        storages.insert(key, stream.storage(dtype)?);
    }
    flatten(path, &object, &|key| {
        let storage = storages.get(key).cloned();
        storage.ok_or_else(|| stream.bad("a storage is missing; was it cut off?"))
    })
}

/// The element type of every storage by its key; `None` where one is a part of another, as PyTorch
/// before 0.4 wrote them.
fn dtypes<'a>(object: &Pickle<'a>) -> Option<BTreeMap<&'a str, Dtype>> {
    let mut dtypes = BTreeMap::new();
    for node in object.nodes() {
        let Node::Persistent(tuple) = node else { continue };
        if object.items(*tuple)?.get(5).is_some_and(|part| *part != Value::None) {
            return None;
        }
        // Storages of other kinds are refused where a tensor uses them.
        dtypes.extend(rebuild::storage_in(object, *tuple).map(|(dtype, key)| (key, dtype)));
    }
    Some(dtypes)
}

struct Stream<'a> {
    path: &'a Path,
    bytes: &'a Bytes,
    at: usize,
}

impl<'a> Stream<'a> {
    fn pickle(&mut self) -> Result<Pickle<'a>, Error> {
        let bytes: &'a [u8] = self.bytes;
        let read = Pickle::read_first(&bytes[self.at..], allow);
        let (pickle, len) = read.map_err(|mut source| {
            source.at += self.at;
            Error::Pickle { path: self.path.into(), source }
        })?;
        self.at += len;
        Ok(pickle)
    }

    fn storage(&mut self, dtype: Dtype) -> Result<Bytes, Error> {
        let cut_off = || self.bad("it ends inside of a storage; was it cut off?");
        let count = self.bytes[self.at..].first_chunk().ok_or_else(cut_off)?;
        let count = usize::try_from(i64::from_le_bytes(*count)).map_err(|_| cut_off())?;
        let start = self.at + size_of::<i64>();
        let end = count.checked_mul(dtype.bytes()).and_then(|len| start.checked_add(len));
        let end = end.ok_or_else(cut_off)?;
        let storage = self.bytes.slice(start..end).ok_or_else(cut_off)?;
        self.at = end;
        Ok(storage)
    }

    fn bad(&self, problem: &str) -> Error {
        Error::Archive { path: self.path.into(), problem: problem.into() }
    }
}

//! Traces of ids: which rows of a table were looked up, in order, from whatever people keep them
//! in: a line each, NumPy, PyTorch, safetensors.

use std::path::Path;

use crate::map::Bytes;
use crate::{Checkpoint, Error, Tensor, npy};

/// Ids in order, and where they are known the bounds of the bags: bag `b` holds
/// `ids[offsets[b]..offsets[b + 1]]`. With several tables, all bags of the first come first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdTrace {
    pub ids: Vec<i64>,
    pub offsets: Option<Vec<i64>>,
}

/// By these names, or in this order where there are none.
const NAMES: [&str; 3] = ["indices", "offsets", "lengths"];

impl IdTrace {
    /// Reads a trace by what the file holds, whatever it is called.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let bytes = Bytes::map(path)?;
        let trace = if bytes.starts_with(npy::MAGIC) {
            let array = npy::read(path, &bytes)?;
            if array.shape.len() != 1 {
                let shape = &array.shape;
                return Err(bad(
                    path,
                    format!("ids of shape {shape:?}; one dimension is expected"),
                ));
            }
            Self { ids: integers(path, "array", &array)?, offsets: None }
        } else if is_text(&bytes) {
            Self { ids: parse(path, &bytes)?, offsets: None }
        } else {
            from_tensors(path, &Checkpoint::open(path)?)?
        };
        if trace.ids.is_empty() {
            return Err(bad(path, "it holds no ids".into()));
        }
        check_offsets(path, &trace)?;
        Ok(trace)
    }
}

fn bad(path: &Path, problem: String) -> Error {
    Error::Trace { path: path.into(), problem }
}

/// No other format that we read is free of control characters at its beginning.
fn is_text(bytes: &[u8]) -> bool {
    let start = &bytes[..bytes.len().min(512)];
    start.iter().all(|byte| !byte.is_ascii_control() || byte.is_ascii_whitespace())
}

/// One id a line; blank lines and what follows `#` mean nothing.
fn parse(path: &Path, bytes: &[u8]) -> Result<Vec<i64>, Error> {
    let mut ids = Vec::new();
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let text = line.split(|byte| *byte == b'#').next().unwrap_or_default().trim_ascii();
        if text.is_empty() {
            continue;
        }
        let id = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
        ids.push(id.ok_or_else(|| {
            let shown: String = String::from_utf8_lossy(text).chars().take(40).collect();
            let problem = format!("`{shown}` is no id; one integer a line is expected");
            Error::TraceLine { path: path.into(), line: index + 1, problem }
        })?);
    }
    Ok(ids)
}

fn from_tensors(path: &Path, checkpoint: &Checkpoint) -> Result<IdTrace, Error> {
    let tensors = &checkpoint.tensors;
    let named = tensors.contains_key(NAMES[0]);
    let get = |position: usize| {
        let name = if named { NAMES[position].into() } else { position.to_string() };
        tensors.get(&name).map(|tensor| integers(path, &name, tensor)).transpose()
    };
    let Some(ids) = get(0)? else {
        let found: Vec<_> = tensors.keys().take(3).map(String::as_str).collect();
        let found = if found.is_empty() { "none".into() } else { found.join(", ") };
        return Err(bad(
            path,
            format!(
                "a tensor `indices` or a tuple (indices, offsets, lengths) is expected; found: {found}"
            ),
        ));
    };
    let (offsets, lengths) = (get(1)?, get(2)?);
    let counted = lengths.map(|lengths| counted(path, &lengths)).transpose()?;
    if let (Some(offsets), Some(counted)) = (&offsets, &counted)
        && offsets != counted
    {
        return Err(bad(path, "offsets and lengths contradict each other".into()));
    }
    Ok(IdTrace { ids, offsets: offsets.or(counted) })
}

fn integers(path: &Path, name: &str, tensor: &Tensor) -> Result<Vec<i64>, Error> {
    tensor.as_i64().map(Into::into).ok_or_else(|| Error::Tensor {
        path: path.into(),
        name: name.into(),
        problem: format!("is {}; 64-bit integers are expected", tensor.dtype),
    })
}

/// Offsets from lengths.
fn counted(path: &Path, lengths: &[i64]) -> Result<Vec<i64>, Error> {
    let mut offsets = Vec::with_capacity(lengths.len() + 1);
    let mut end = 0_i64;
    offsets.push(end);
    for length in lengths {
        let next = end.checked_add(*length).filter(|_| *length >= 0);
        end = next.ok_or_else(|| bad(path, format!("{length} is no length of a bag")))?;
        offsets.push(end);
    }
    Ok(offsets)
}

fn check_offsets(path: &Path, trace: &IdTrace) -> Result<(), Error> {
    let Some(offsets) = &trace.offsets else { return Ok(()) };
    if let Some(position) = offsets.windows(2).position(|pair| pair[0] > pair[1]) {
        let (before, after) = (offsets[position], offsets[position + 1]);
        let at = position + 1;
        return Err(bad(path, format!("offsets fall from {before} to {after} at position {at}")));
    }
    match (offsets.first(), offsets.last()) {
        (Some(0), Some(end)) if usize::try_from(*end) == Ok(trace.ids.len()) => Ok(()),
        (Some(0), Some(end)) => {
            let ids = trace.ids.len();
            Err(bad(path, format!("offsets end at {end}; there are {ids} ids")))
        }
        (Some(start), _) => Err(bad(path, format!("offsets start at {start}, not at 0"))),
        _ => Err(bad(path, "offsets are empty; one more than there are bags is expected".into())),
    }
}

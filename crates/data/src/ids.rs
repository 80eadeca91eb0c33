//! Requests to a model as files hold them: ids of rows in bags, and where they are there, dense
//! features and weights. Reads lists of ids, CSV, JSON lines, NumPy, PyTorch and safetensors.
//!
//! docs/formats/requests.md describes the files. A file that can be read in two ways says which,
//! or the caller does: nothing here guesses a batch size.

use std::collections::BTreeMap;
use std::path::Path;

use crate::map::Bytes;
use crate::samples::{Format, SampleReader};
use crate::{Checkpoint, Dtype, Error, Npz, Tensor, npy, npz};

/// Ids in order, and where they are known the bounds of the bags: bag `b` holds
/// `ids[offsets[b]..offsets[b + 1]]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IdTrace {
    pub ids: Vec<i64>,
    /// `None` for a plain list of ids, which any number of bags may be cut from.
    pub offsets: Option<Vec<i64>>,
    /// True where each sample has the bags of all tables side by side; false where each batch has
    /// all bags of the first table, then those of the second.
    pub by_sample: bool,
    /// The number of tables, where the file's shapes show it.
    pub tables: Option<usize>,
    /// Samples per batch, where the file says so.
    pub batch: Option<usize>,
    /// One per id.
    pub weights: Option<Vec<f32>>,
    pub dense: Option<Dense>,
    /// Columns and keys of a file of lines that are neither features nor tables.
    pub ignored: Vec<String>,
}

/// Dense features, one row per sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dense {
    pub rows: usize,
    pub width: usize,
    pub values: Vec<f32>,
}

/// What a model takes of each sample: the number of dense features and the names of its tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    pub dense: usize,
    pub tables: Vec<String>,
}

/// The names of the tensors; of a tuple, the first three in this order.
const INDICES: [&str; 2] = ["indices", "ids"];
const OFFSETS: &str = "offsets";
const LENGTHS: &str = "lengths";
const WEIGHTS: &str = "weights";
const DENSE: &str = "dense";
const BATCH: [&str; 2] = ["batch", "batch_size"];

impl IdTrace {
    /// Reads a file by its content, whatever it is called. CSV, JSON lines and matrices hold what
    /// `columns` says.
    pub fn read(path: impl AsRef<Path>, columns: &Columns) -> Result<Self, Error> {
        let path = path.as_ref();
        let bytes = Bytes::map(path)?;
        let trace = if bytes.starts_with(npy::MAGIC) {
            from_array(path, &npy::read(path, &bytes)?, columns)?
        } else if let Some(format) = Format::detect(path, &bytes) {
            let samples = SampleReader::open(path, format, columns)?.read(usize::MAX)?;
            samples.map(|block| block.trace).ok_or_else(|| bad(path, "it holds no samples"))?
        } else if is_text(&bytes) {
            Self { ids: parse(path, &bytes)?, ..Self::default() }
        } else {
            from_tensors(path, &open_tensors(path)?)?
        };
        // Bags may all be empty, but a plain list must hold something.
        if trace.ids.is_empty() && trace.offsets.as_ref().is_none_or(|offsets| offsets.len() < 2) {
            return Err(bad(path, "it holds no ids"));
        }
        trace.check(path)?;
        Ok(trace)
    }

    fn check(&self, path: &Path) -> Result<(), Error> {
        check_offsets(path, self)?;
        if self.batch == Some(0) {
            return Err(bad(path, "`batch` is 0; at least one sample per batch is expected"));
        }
        if let Some(weights) = &self.weights
            && weights.len() != self.ids.len()
        {
            let (weights, ids) = (weights.len(), self.ids.len());
            return Err(bad(
                path,
                format!("{weights} weights for {ids} ids; one per id is expected"),
            ));
        }
        Ok(())
    }
}

fn bad(path: &Path, problem: impl Into<String>) -> Error {
    Error::Trace { path: path.into(), problem: problem.into() }
}

/// No other format that we read is free of control characters at its beginning.
pub(crate) fn is_text(bytes: &[u8]) -> bool {
    let start = &bytes[..bytes.len().min(512)];
    start.iter().all(|byte| !byte.is_ascii_control() || byte.is_ascii_whitespace())
}

/// A file of tensors by name: safetensors, .pt or .npz.
pub fn open_tensors(path: &Path) -> Result<Checkpoint, Error> {
    if Bytes::map(path)?.starts_with(npz::MAGIC) {
        let npz = Npz::open(path)?;
        let names: Vec<String> = npz.names().map(Into::into).collect();
        // PyTorch's archives are zip files as well, but hold no .npy files.
        if !names.is_empty() {
            let read = |name: String| npz.array(&name).map(|tensor| (name, tensor));
            let tensors = names.into_iter().map(read).collect::<Result<_, _>>()?;
            let metadata = BTreeMap::new();
            return Ok(Checkpoint { path: path.into(), tensors, metadata, order: None });
        }
    }
    Checkpoint::open(path)
}

/// One id per line; blank lines and what follows `#` mean nothing.
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
            let problem = format!("`{shown}` is not an id; one integer per line is expected");
            Error::TraceLine { path: path.into(), line: index + 1, problem }
        })?);
    }
    Ok(ids)
}

/// A list of ids, or one row per sample: its dense features, then one id per table.
fn from_array(path: &Path, array: &Tensor, columns: &Columns) -> Result<IdTrace, Error> {
    let tables = columns.tables.len();
    let (rows, dense) = match array.shape[..] {
        [_] => return Ok(IdTrace { ids: integers(path, "array", array)?, ..IdTrace::default() }),
        [rows, width] if tables > 0 && width == tables => (rows, 0),
        [rows, width] if tables > 0 && width == columns.dense + tables => (rows, columns.dense),
        _ => {
            let (shape, dense) = (&array.shape, columns.dense);
            return Err(bad(
                path,
                format!(
                    "an array of shape {shape:?}; expected a list of ids, or rows of {dense} dense \
                     features and {tables} ids, one per table"
                ),
            ));
        }
    };
    let cell = cells(path, array)?;
    let mut values = Vec::with_capacity(rows * dense);
    let mut ids = Vec::with_capacity(rows * tables);
    for row in 0..rows {
        let start = row * (dense + tables);
        values.extend((start..start + dense).map(|at| cell(at).0));
        for (t, table) in columns.tables.iter().enumerate() {
            ids.push(cell(start + dense + t).1.ok_or_else(|| {
                let dtype = array.dtype;
                bad(
                    path,
                    format!("row {row}, table `{table}`: not an id that {dtype} holds exactly"),
                )
            })?);
        }
    }
    Ok(IdTrace {
        ids,
        offsets: Some((0..=(rows * tables) as i64).collect()),
        by_sample: true,
        tables: Some(tables),
        dense: (dense > 0).then_some(Dense { rows, width: dense, values }),
        ..IdTrace::default()
    })
}

/// An element as a feature, and as an id where it is a whole number that its type holds exactly.
type Cell = (f32, Option<i64>);

fn cells<'a>(path: &Path, array: &'a Tensor) -> Result<Box<dyn Fn(usize) -> Cell + 'a>, Error> {
    if let Some(numbers) = array.as_i64() {
        return Ok(Box::new(move |at| (numbers[at] as f32, Some(numbers[at]))));
    }
    let exact = exact_integers(array.dtype);
    let numbers: Vec<f64> = match array.dtype {
        Dtype::F64 => array.bytes.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect(),
        _ => floats(path, "array", array)?.into_iter().map(f64::from).collect(),
    };
    Ok(Box::new(move |at| {
        let number = numbers[at];
        let is_id = number.fract() == 0.0 && number.abs() < exact;
        (number as f32, is_id.then_some(number as i64))
    }))
}

/// Below this, a floating-point type holds every integer.
fn exact_integers(dtype: Dtype) -> f64 {
    let bits = match dtype {
        Dtype::F64 => 53,
        Dtype::F32 => 24,
        Dtype::F16 => 11,
        _ => 8,
    };
    (1_u64 << bits) as f64
}

/// The tensors of a file that mean something to us.
struct Named<'a> {
    path: &'a Path,
    file: &'a Checkpoint,
    /// What the members of a tuple are called instead.
    tuple: BTreeMap<&'static str, String>,
}

impl<'a> Named<'a> {
    fn new(path: &'a Path, file: &'a Checkpoint) -> Self {
        let mut tuple = BTreeMap::new();
        if !INDICES.iter().any(|name| file.tensors.contains_key(*name)) {
            let mut names = ["indices", OFFSETS, LENGTHS].into_iter();
            let members = (0..file.tensors.len()).map(|position| position.to_string());
            for member in members.filter(|member| file.tensors.contains_key(member)) {
                let tensor = &file.tensors[&member];
                let name = if is_matrix_of_floats(tensor) { Some(DENSE) } else { names.next() };
                name.map(|name| tuple.insert(name, member));
            }
        }
        Self { path, file, tuple }
    }

    fn get(&self, name: &'static str) -> Option<(&str, &'a Tensor)> {
        let name = self.tuple.get(name).map_or(name, String::as_str);
        self.file.tensors.get(name).map(|tensor| (name, tensor))
    }

    fn integers(&self, name: &'static str) -> Result<Option<Vec<i64>>, Error> {
        self.get(name).map(|(name, tensor)| integers(self.path, name, tensor)).transpose()
    }

    /// Samples per batch: a tensor of one integer, or an entry of the file's metadata.
    fn batch(&self) -> Result<Option<usize>, Error> {
        let mut batch = None;
        for name in BATCH {
            let wrong = |found: &str| {
                bad(self.path, format!("`{name}` is `{found}`; the samples per batch are expected"))
            };
            let number = if let Some((_, tensor)) = self.get(name) {
                let numbers = tensor.as_i64().filter(|numbers| numbers.len() == 1);
                let number = numbers.and_then(|numbers| usize::try_from(numbers[0]).ok());
                Some(number.ok_or_else(|| wrong(&format!("{} {:?}", tensor.dtype, tensor.shape)))?)
            } else {
                let text = self.file.metadata.get(name);
                text.map(|text| text.parse().map_err(|_| wrong(text))).transpose()?
            };
            if batch.is_some() && number.is_some() && batch != number {
                return Err(bad(self.path, "`batch` and `batch_size` contradict each other"));
            }
            batch = batch.or(number);
        }
        Ok(batch)
    }

    fn dense(&self) -> Result<Option<Dense>, Error> {
        let Some((name, tensor)) = self.get(DENSE) else { return Ok(None) };
        let [rows, width] = tensor.shape[..] else {
            let problem =
                format!("has shape {:?}; one row of features per sample is expected", tensor.shape);
            return Err(tensor_error(self.path, name, problem));
        };
        let values = floats(self.path, name, tensor)?;
        Ok(Some(Dense { rows, width, values }))
    }
}

fn is_matrix_of_floats(tensor: &Tensor) -> bool {
    tensor.shape.len() == 2 && tensor.as_i64().is_none() && tensor.dtype != Dtype::Bool
}

fn from_tensors(path: &Path, file: &Checkpoint) -> Result<IdTrace, Error> {
    let named = Named::new(path, file);
    let Some((name, indices)) = INDICES.into_iter().find_map(|name| named.get(name)) else {
        let found: Vec<_> = file.tensors.keys().take(3).map(String::as_str).collect();
        let found = if found.is_empty() { "none".into() } else { found.join(", ") };
        return Err(bad(
            path,
            format!(
                "a tensor `indices` or a tuple (indices, offsets, lengths) is expected; found: {found}"
            ),
        ));
    };
    let mut trace = IdTrace {
        ids: integers(path, name, indices)?,
        batch: named.batch()?,
        dense: named.dense()?,
        ..IdTrace::default()
    };
    let weights = named.get(WEIGHTS).map(|(name, tensor)| floats(path, name, tensor));
    trace.weights = weights.transpose()?;
    let offsets = named.integers(OFFSETS)?;
    let lengths = named.integers(LENGTHS)?;
    if indices.shape.len() != 1 {
        if offsets.is_some() || lengths.is_some() {
            let problem = format!(
                "has shape {:?}; with offsets or lengths, one dimension is expected",
                indices.shape
            );
            return Err(tensor_error(path, name, problem));
        }
        return by_shape(path, name, indices, trace);
    }
    if let Some((name, tensor)) = named.get(LENGTHS) {
        let (tables, batch) = match tensor.shape[..] {
            [tables, batch] | [_, tables, batch] => (Some(tables), Some(batch)),
            _ => (None, None),
        };
        if trace.batch.is_some() && batch.is_some() && trace.batch != batch {
            let problem = format!("has shape {:?}, which contradicts `batch`", tensor.shape);
            return Err(tensor_error(path, name, problem));
        }
        (trace.tables, trace.batch) = (tables, trace.batch.or(batch));
    }
    let counted = lengths.map(|lengths| counted(path, &lengths)).transpose()?;
    if let (Some(offsets), Some(counted)) = (&offsets, &counted)
        && offsets != counted
    {
        return Err(bad(path, "offsets and lengths contradict each other"));
    }
    trace.offsets = offsets.or(counted);
    Ok(trace)
}

/// Ids of shape [samples, tables], or [samples, tables, ids per bag].
fn by_shape(path: &Path, name: &str, indices: &Tensor, trace: IdTrace) -> Result<IdTrace, Error> {
    let (samples, tables, per_bag) = match indices.shape[..] {
        [samples, tables] => (samples, tables, 1),
        [samples, tables, per_bag] => (samples, tables, per_bag),
        _ => {
            let problem = format!(
                "has shape {:?}; a list, [samples, tables] or [samples, tables, ids per bag] is expected",
                indices.shape
            );
            return Err(tensor_error(path, name, problem));
        }
    };
    // An empty dimension makes the others any number at all.
    let bags = samples.checked_mul(tables).filter(|bags| *bags <= trace.ids.len().max(1 << 24));
    let bags = bags.ok_or_else(|| tensor_error(path, name, "has too many empty bags".into()))?;
    let offsets = (0..=bags).map(|bag| (bag * per_bag) as i64).collect();
    Ok(IdTrace { offsets: Some(offsets), by_sample: true, tables: Some(tables), ..trace })
}

fn integers(path: &Path, name: &str, tensor: &Tensor) -> Result<Vec<i64>, Error> {
    tensor.as_i64().map(Into::into).ok_or_else(|| {
        tensor_error(path, name, format!("is {}; 64-bit integers are expected", tensor.dtype))
    })
}

/// Integers are taken as numbers too: counts are common features.
fn floats(path: &Path, name: &str, tensor: &Tensor) -> Result<Vec<f32>, Error> {
    if let Some(values) = tensor.as_f32() {
        return Ok(values.into());
    }
    let values = tensor.as_i64().ok_or_else(|| not_numbers(path, name, tensor))?;
    Ok(values.iter().map(|value| *value as f32).collect())
}

fn not_numbers(path: &Path, name: &str, tensor: &Tensor) -> Error {
    tensor_error(path, name, format!("is {}; numbers are expected", tensor.dtype))
}

fn tensor_error(path: &Path, name: &str, problem: String) -> Error {
    Error::Tensor { path: path.into(), name: name.into(), problem }
}

/// Offsets from lengths.
fn counted(path: &Path, lengths: &[i64]) -> Result<Vec<i64>, Error> {
    let mut offsets = Vec::with_capacity(lengths.len() + 1);
    let mut end = 0_i64;
    offsets.push(end);
    for length in lengths {
        let next = end.checked_add(*length).filter(|_| *length >= 0);
        end = next.ok_or_else(|| bad(path, format!("{length} is not the length of a bag")))?;
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
        _ => Err(bad(path, "offsets are empty; one more than there are bags is expected")),
    }
}

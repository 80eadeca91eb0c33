//! The tensors that a model takes, and how a request's tensors become what the engine reads.
//!
//! Dense features are `dense`, FP32 [B, n]. Ids come in one of three forms:
//!
//! - *joined*: `values` [ids] and `lengths` [tables · B], table after table, as a KeyedJaggedTensor
//!   has them; optional `weights` [ids];
//! - *per table*: `TABLE.indices` [ids], `TABLE.offsets` [B] or [B + 1], optional `TABLE.weights`;
//! - *matrix*: `sparse` [B, ids of all tables], for models whose bags have fixed lengths.
//!
//! The model's configuration says which form its metadata describes; requests may use any.

mod features;

use std::collections::HashMap;

pub use self::features::Features;
pub(crate) use self::features::Lists;
use crate::config::ModelConfig;
use crate::error::{Error, shown_id};
use crate::infer::InferRequest;
use crate::tensor::{Array, Datatype, Tensor, shown_shape};

pub const DENSE: &str = "dense";
pub const SPARSE: &str = "sparse";
pub const VALUES: &str = "values";
pub const LENGTHS: &str = "lengths";
pub const WEIGHTS: &str = "weights";
pub const SCORES: &str = "scores";

/// How the ids of a request are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    Joined,
    PerTable,
    Matrix,
}

/// A tensor that a model takes or returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    pub name: String,
    pub datatype: Datatype,
    /// −1 for a dimension that differs from request to request.
    pub shape: Vec<i64>,
    pub is_optional: bool,
}

/// The sizes of a model.
#[derive(Clone, Debug, Default)]
pub struct ModelShape {
    /// Dense features per sample.
    pub dense: usize,
    /// Name and rows of each table.
    pub tables: Vec<(String, usize)>,
    /// Scores per sample.
    pub outputs: usize,
}

/// What a model takes and returns.
#[derive(Clone, Debug)]
pub struct Signature {
    pub model: String,
    pub form: Form,
    /// Dense features per sample.
    dense: usize,
    tables: Vec<String>,
    table_rows: Vec<usize>,
    /// Ids per bag of each table, where they are fixed; else empty.
    ids_per_bag: Vec<usize>,
    /// Scores per sample.
    outputs: usize,
    /// Samples per request.
    pub samples_max: usize,
    ids_per_bag_max: usize,
    roles: HashMap<String, Role>,
}

/// What a tensor is for, by its name.
#[derive(Clone, Copy, Debug)]
enum Role {
    Dense,
    Sparse,
    Values,
    Lengths,
    Weights,
    Indices(usize),
    Offsets(usize),
    TableWeights(usize),
}

/// A request's tensors by their roles.
#[derive(Default)]
struct Given {
    dense: Option<Tensor>,
    sparse: Option<Tensor>,
    values: Option<Tensor>,
    lengths: Option<Tensor>,
    weights: Option<Tensor>,
    /// Indices, offsets and weights of each table; empty until one is given.
    tables: Vec<[Option<Tensor>; 3]>,
}

impl Signature {
    /// `ids_per_bag` has one number per table, or none where bags differ.
    pub fn new(
        model: &str,
        shape: ModelShape,
        form: Form,
        ids_per_bag: Vec<usize>,
        config: &ModelConfig,
    ) -> Self {
        let mut roles = HashMap::new();
        for (t, (table, _)) in shape.tables.iter().enumerate() {
            roles.insert(format!("{table}.indices"), Role::Indices(t));
            roles.insert(format!("{table}.offsets"), Role::Offsets(t));
            roles.insert(format!("{table}.weights"), Role::TableWeights(t));
        }
        let (tables, table_rows) = shape.tables.into_iter().unzip();
        let plain = [
            (DENSE, Role::Dense),
            (SPARSE, Role::Sparse),
            (VALUES, Role::Values),
            (LENGTHS, Role::Lengths),
            (WEIGHTS, Role::Weights),
        ];
        roles.extend(plain.map(|(name, role)| (name.to_owned(), role)));
        if ids_per_bag.is_empty() {
            roles.remove(SPARSE);
        }
        Self {
            model: model.into(),
            form,
            dense: shape.dense,
            tables,
            table_rows,
            ids_per_bag,
            outputs: shape.outputs,
            samples_max: config.max_batch_size,
            ids_per_bag_max: config.ids_per_bag_max,
            roles,
        }
    }

    /// Whether the first dimension of every input counts samples, so that clients may batch by
    /// joining requests.
    pub fn is_batched(&self) -> bool {
        self.form == Form::Matrix
    }

    /// The inputs of the form that the metadata describes.
    pub fn inputs(&self) -> Vec<TensorInfo> {
        let info = |name: String, datatype, shape: &[i64]| TensorInfo {
            name,
            datatype,
            shape: shape.into(),
            is_optional: false,
        };
        let (ids, floats) = (Datatype::Int64, Datatype::Fp32);
        let mut inputs = vec![info(DENSE.into(), floats, &[-1, self.dense as i64])];
        match self.form {
            Form::Matrix => inputs.push(info(SPARSE.into(), ids, &[-1, self.width() as i64])),
            Form::Joined => {
                inputs.push(info(VALUES.into(), ids, &[-1]));
                inputs.push(info(LENGTHS.into(), ids, &[-1]));
                let weights = info(WEIGHTS.into(), floats, &[-1]);
                inputs.push(TensorInfo { is_optional: true, ..weights });
            }
            Form::PerTable => {
                for table in &self.tables {
                    inputs.push(info(format!("{table}.indices"), ids, &[-1]));
                    inputs.push(info(format!("{table}.offsets"), ids, &[-1]));
                    let weights = info(format!("{table}.weights"), floats, &[-1]);
                    inputs.push(TensorInfo { is_optional: true, ..weights });
                }
            }
        }
        inputs
    }

    pub fn outputs(&self) -> Vec<TensorInfo> {
        let shape = vec![-1, self.outputs as i64];
        let name = SCORES.to_owned();
        vec![TensorInfo { name, datatype: Datatype::Fp32, shape, is_optional: false }]
    }

    /// What shapes do not tell a client that draws requests: the rows of each table, and where bags have
    /// fixed lengths the ids per bag.
    pub fn parameters(&self) -> Vec<(&'static str, String)> {
        let list = |numbers: &[usize]| {
            numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
        };
        let known = [("table_rows", &self.table_rows), ("ids_per_bag", &self.ids_per_bag)];
        let known = known.into_iter().filter(|(_, numbers)| !numbers.is_empty());
        known.map(|(name, numbers)| (name, list(numbers))).collect()
    }

    /// Ids of a sample in all tables, where bags have fixed lengths.
    pub fn ids_per_sample(&self) -> Option<usize> {
        (!self.ids_per_bag.is_empty()).then(|| self.width())
    }

    pub fn scores_per_sample(&self) -> usize {
        self.outputs
    }

    /// As above; 0 where bags differ.
    fn width(&self) -> usize {
        self.ids_per_bag.iter().sum()
    }

    /// Takes a request's tensors and checks them once for all: shapes, types, offsets and the lengths of
    /// bags. Whether each id has a row is checked as it is looked up. What is made of the tensors counts as
    /// if it had been received.
    pub fn features(&self, request: &mut InferRequest) -> Result<Features, Error> {
        let decoder = Decoder { signature: self, id: &request.id };
        if let Some(name) = request.outputs.iter().find(|name| *name != SCORES) {
            let model = &self.model;
            return decoder
                .refuse(format!("unexpected inference output '{name}' for model '{model}'"));
        }
        let (samples, dense, sparse) = decoder.decoded(std::mem::take(&mut request.inputs))?;
        if let Some((table, ids)) = sparse.long_bag(samples, self.ids_per_bag_max) {
            let (name, most) = (&self.tables[table], self.ids_per_bag_max);
            return decoder.refuse(format!(
                "a bag of table `{name}` has {ids} ids; up to {most} are accepted"
            ));
        }
        let mut held = request.held.take();
        held.grow(dense.made_bytes() + sparse.made_bytes())?;
        Ok(Features { samples, ids: sparse.ids(), dense, sparse, _held: held })
    }
}

struct Decoder<'a> {
    signature: &'a Signature,
    id: &'a str,
}

impl Decoder<'_> {
    fn refuse<T>(&self, problem: impl Into<std::borrow::Cow<'static, str>>) -> Result<T, Error> {
        Err(Error::Request { id: shown_id(self.id), problem: problem.into() })
    }

    fn decoded(&self, inputs: Vec<Tensor>) -> Result<(usize, Array<f32>, Lists), Error> {
        let count = inputs.len();
        let mut given = self.sort(inputs)?;
        let Some(dense) = given.dense.take() else {
            return self.missing(DENSE, count);
        };
        let features = self.signature.dense as i64;
        let samples = match dense.shape[..] {
            [samples, width] if samples >= 1 && width == features => samples as usize,
            _ => return self.wrong_shape(&dense, &[-1, features]),
        };
        if samples > self.signature.samples_max {
            let Signature { samples_max, model, .. } = self.signature;
            return self.refuse(format!(
                "inference request batch-size must be <= {samples_max} for '{model}'"
            ));
        }
        let dense = self.floats(dense)?;
        let sparse = match (given.sparse.take(), given.tables.is_empty()) {
            (Some(sparse), true) if given.has_no_lists() => self.matrix(sparse, samples)?,
            (None, true) => self.joined(given, samples, count)?,
            (None, false) if given.has_no_lists() => self.per_table(given, samples, count)?,
            _ => {
                return self.refuse(
                    "ids are given in several forms; send `values` and `lengths`, or \
                     `TABLE.indices` and `TABLE.offsets`, or `sparse`",
                );
            }
        };
        Ok((samples, dense, sparse))
    }

    fn sort(&self, inputs: Vec<Tensor>) -> Result<Given, Error> {
        let mut given = Given::default();
        for tensor in inputs {
            let Some(role) = self.signature.roles.get(&tensor.name) else {
                let (name, model) = (&tensor.name, &self.signature.model);
                return self
                    .refuse(format!("unexpected inference input '{name}' for model '{model}'"));
            };
            let place = match *role {
                Role::Dense => &mut given.dense,
                Role::Sparse => &mut given.sparse,
                Role::Values => &mut given.values,
                Role::Lengths => &mut given.lengths,
                Role::Weights => &mut given.weights,
                Role::Indices(table) => given.table(table, 0, self.signature.tables.len()),
                Role::Offsets(table) => given.table(table, 1, self.signature.tables.len()),
                Role::TableWeights(table) => given.table(table, 2, self.signature.tables.len()),
            };
            if place.is_some() {
                return self.refuse(format!("input '{}' is given twice", tensor.name));
            }
            *place = Some(tensor);
        }
        Ok(given)
    }

    fn missing<T>(&self, name: &str, count: usize) -> Result<T, Error> {
        let required = self.signature.inputs().iter().filter(|input| !input.is_optional).count();
        let model = &self.signature.model;
        self.refuse(format!(
            "expected {required} inputs but got {count} inputs for model '{model}'. \
             Missing required input '{name}'. Please provide all required inputs."
        ))
    }

    fn wrong_shape<T>(&self, tensor: &Tensor, expected: &[i64]) -> Result<T, Error> {
        Err(Error::Shape {
            id: shown_id(self.id),
            input: tensor.name.clone(),
            model: self.signature.model.clone(),
            expected: shown_shape(expected),
            found: shown_shape(&tensor.shape),
        })
    }

    fn datatype(&self, tensor: &Tensor, expected: &[Datatype]) -> Result<Datatype, Error> {
        let found = Datatype::from_name(&tensor.datatype);
        found.filter(|found| expected.contains(found)).ok_or_else(|| Error::Datatype {
            id: shown_id(self.id),
            input: tensor.name.clone(),
            model: self.signature.model.clone(),
            expected: expected[0].name(),
            found: tensor.datatype.clone(),
        })
    }

    /// Checks that a tensor has as many elements as its shape says.
    fn check_size(&self, tensor: &Tensor, datatype: Datatype) -> Result<(), Error> {
        let elements = tensor
            .shape
            .iter()
            .try_fold(1usize, |product, dim| product.checked_mul(usize::try_from(*dim).ok()?));
        let expected = elements.and_then(|elements| elements.checked_mul(datatype.bytes()));
        let found = tensor.data.elements(datatype);
        if elements.is_some() && expected.is_some() && elements == found {
            return Ok(());
        }
        let expected = expected.map_or("far more".into(), |bytes| bytes.to_string());
        let (name, found) = (&tensor.name, tensor.data.bytes());
        self.refuse(format!(
            "input byte size mismatch for input '{name}' for model '{}'. Expected {expected}, got {found}",
            self.signature.model
        ))
    }

    fn floats(&self, tensor: Tensor) -> Result<Array<f32>, Error> {
        let datatype = self.datatype(&tensor, &[Datatype::Fp32])?;
        self.check_size(&tensor, datatype)?;
        Ok(features::floats(tensor.data))
    }
}

impl Given {
    fn table(&mut self, table: usize, part: usize, tables: usize) -> &mut Option<Tensor> {
        if self.tables.is_empty() {
            self.tables.resize_with(tables, Default::default);
        }
        &mut self.tables[table][part]
    }

    fn has_no_lists(&self) -> bool {
        self.values.is_none() && self.lengths.is_none() && self.weights.is_none()
    }
}

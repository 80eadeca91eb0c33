//! `model.toml`: the shape of a model. The names and shapes of all its tensors follow from it.
//! A table stands for one sparse feature; features that share rows name the table that owns them.

use std::path::Path;

use hither_data::Dtype as Element;
use hither_data::safetensors::Entry;
use hither_kernels::bag::{Dtype, Pooling};
use serde::{Deserialize, Serialize};

use crate::Error;

/// Rows are addressed by 32 bits.
pub const ROWS_MAX: usize = u32::MAX as usize;
/// Upper bounds; larger values indicate a corrupt file.
const TABLES_MAX: usize = 100_000;
const WIDTH_MAX: usize = 1 << 20;
const LAYERS_MAX: usize = 1000;
/// Weights of one layer.
const LAYER_MAX: usize = 1 << 28;

/// The shape of a model, as `model.toml` holds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    pub name: String,
    pub interaction: Interaction,
    /// Whether the top MLP ends in a sigmoid; otherwise the outputs are logits.
    pub sigmoid: bool,
    /// Sizes of the bottom MLP, from the dense features to the input of the interaction.
    pub bottom: Vec<usize>,
    /// Sizes of the top MLP from the interaction's output to the model's.
    pub top: Vec<usize>,
    /// For `dcn` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cross: Option<Cross>,
    /// For `projection` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub projection: Option<Projection>,
    #[serde(rename = "table")]
    pub tables: Vec<TableSpec>,
}

/// How dense features and pooled rows are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Interaction {
    /// All dot products of two of them, behind the dense features.
    Dot,
    /// As `Dot`, and the product of each with itself.
    DotItself,
    /// Side by side.
    Cat,
    /// Side by side, then cross layers of low rank.
    Dcn,
    /// Side by side through two MLPs, then the dot products of their outputs, behind the dense
    /// features.
    Projection,
}

impl Interaction {
    pub const ALL: [Self; 5] = [Self::Dot, Self::DotItself, Self::Cat, Self::Dcn, Self::Projection];

    pub fn name(self) -> &'static str {
        match self {
            Self::Dot => "dot",
            Self::DotItself => "dot-itself",
            Self::Cat => "cat",
            Self::Dcn => "dcn",
            Self::Projection => "projection",
        }
    }
}

impl std::str::FromStr for Interaction {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|kind| kind.name() == name);
        known.ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            format!("`{name}` is not an interaction; expected one of {known}")
        })
    }
}

/// Cross layers, each `x' = x0 · (W (V x) + bias) + x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cross {
    pub layers: usize,
    pub rank: usize,
}

/// Sizes of the two MLPs of a projection, from all features side by side to vectors that have the
/// width of the dense features each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Projection {
    pub left: Vec<usize>,
    pub right: Vec<usize>,
}

impl Projection {
    /// Dot products of each vector of one side with each of the other.
    fn products(&self, dim: usize) -> usize {
        let vectors = |sizes: &[usize]| sizes.last().map_or(0, |size| size / dim.max(1));
        vectors(&self.left).saturating_mul(vectors(&self.right))
    }
}

/// The table of one sparse feature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableSpec {
    pub name: String,
    pub rows: usize,
    pub dim: usize,
    #[serde(with = "DtypeName")]
    pub dtype: Dtype,
    #[serde(with = "PoolingName")]
    pub pooling: Pooling,
    /// An id that adds nothing to a bag, and is not counted in a mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub padding: Option<i64>,
    /// The table before this one whose rows this feature looks up; `None` for rows of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shares: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Dtype", rename_all = "lowercase")]
enum DtypeName {
    #[serde(rename = "fp32")]
    F32,
    #[serde(rename = "fp16")]
    F16,
    Bf16,
    Int8,
    Int4,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Pooling", rename_all = "lowercase")]
enum PoolingName {
    Sum,
    Mean,
    Max,
}

/// Which part of a model a tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    BottomWeight(usize),
    BottomBias(usize),
    TopWeight(usize),
    TopBias(usize),
    CrossW(usize),
    CrossV(usize),
    CrossBias(usize),
    LeftWeight(usize),
    LeftBias(usize),
    RightWeight(usize),
    RightBias(usize),
    /// Rows of a table that is not quantised.
    Weight(usize),
    /// Quantised rows.
    Rows(usize),
    /// Scales and biases of quantised rows.
    Params(usize),
}

impl Spec {
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(Error::io("read", path))?;
        let spec: Self = toml::from_str(&text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or("");
            let line = before.matches('\n').count() + 1;
            Error::Toml { path: path.into(), line, problem: error.message().into() }
        })?;
        spec.check().map_err(|problem| Error::Spec { path: path.into(), problem })?;
        Ok(spec)
    }

    pub fn dense_features(&self) -> usize {
        self.bottom.first().copied().unwrap_or(0)
    }

    /// Outputs of the bottom MLP.
    pub fn bottom_width(&self) -> usize {
        self.bottom.last().copied().unwrap_or(0)
    }

    /// Outputs of the interaction, which are the inputs of the top MLP.
    pub fn interaction_width(&self) -> usize {
        let pairs = self.tables.len() * (self.tables.len() + 1) / 2;
        match self.interaction {
            Interaction::Dot => self.bottom_width() + pairs,
            Interaction::DotItself => self.bottom_width() + pairs + self.tables.len() + 1,
            Interaction::Cat | Interaction::Dcn => self.concatenated_width(),
            Interaction::Projection => {
                let dim = self.bottom_width();
                dim + self.projection.as_ref().map_or(0, |projection| projection.products(dim))
            }
        }
    }

    /// Elements of the dense features and the pooled rows together.
    pub fn concatenated_width(&self) -> usize {
        self.bottom_width() + self.tables.iter().map(|table| table.dim).sum::<usize>()
    }

    pub fn index_of(&self, table: &str) -> Result<usize, Error> {
        self.tables.iter().position(|t| t.name == table).ok_or_else(|| {
            let names: Vec<_> = self.tables.iter().take(20).map(|t| t.name.as_str()).collect();
            let more = if self.tables.len() > names.len() { ", …" } else { "" };
            Error::UnknownTable { name: table.into(), known: names.join(", ") + more }
        })
    }

    /// The index of the table that owns the rows of this one: itself, unless it shares.
    pub fn owner(&self, index: usize) -> usize {
        let owner = self.tables[index].shares.as_ref();
        owner.and_then(|owner| self.tables.iter().position(|t| t.name == *owner)).unwrap_or(index)
    }

    /// Checks all sizes and names; an error says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        let sizes = |name: &str, sizes: &[usize]| {
            if !(2..=LAYERS_MAX).contains(&sizes.len()) {
                return Err(format!(
                    "{name} = {sizes:?} needs at least an input and an output size"
                ));
            }
            if let Some(size) = sizes.iter().find(|size| !(1..=WIDTH_MAX).contains(*size)) {
                return Err(format!("{name} has a layer of {size}; 1 to {WIDTH_MAX} is possible"));
            }
            match sizes.windows(2).find(|pair| pair[0] * pair[1] > LAYER_MAX) {
                Some(pair) => {
                    Err(format!("{name} has more than {LAYER_MAX} weights between {pair:?}"))
                }
                None => Ok(()),
            }
        };
        sizes("bottom", &self.bottom)?;
        sizes("top", &self.top)?;
        if !(1..=TABLES_MAX).contains(&self.tables.len()) {
            return Err(format!("{} tables; 1 to {TABLES_MAX} are possible", self.tables.len()));
        }
        let mut names = std::collections::BTreeMap::new();
        for table in &self.tables {
            self.check_table(table)?;
            if let Some(owner) = &table.shares {
                check_sharing(table, names.get(owner).copied(), owner)?;
            }
            if names.insert(&table.name, table).is_some() {
                return Err(format!("more than one table is named `{}`", table.name));
            }
        }
        match (self.interaction, self.cross) {
            (
                Interaction::Dcn,
                Some(Cross { layers: 1..=LAYERS_MAX, rank: rank @ 1..=WIDTH_MAX }),
            ) if rank * self.concatenated_width() <= LAYER_MAX => {}
            (Interaction::Dcn, Some(_)) => return Err("[cross] has no possible size".into()),
            (Interaction::Dcn, None) => return Err("dcn needs [cross] with layers and rank".into()),
            (_, Some(_)) => return Err("[cross] is for interaction = \"dcn\" only".into()),
            (_, None) => {}
        }
        self.check_projection(sizes)?;
        if self.top[0] != self.interaction_width() {
            return Err(format!(
                "top begins with {}, and the interaction `{}` gives {}",
                self.top[0],
                self.interaction.name(),
                self.interaction_width()
            ));
        }
        Ok(())
    }

    fn check_projection(
        &self,
        check_sizes: impl Fn(&str, &[usize]) -> Result<(), String>,
    ) -> Result<(), String> {
        let Projection { left, right } = match (self.interaction, &self.projection) {
            (Interaction::Projection, Some(projection)) => projection,
            (Interaction::Projection, None) => {
                return Err("projection needs [projection] with left and right".into());
            }
            (_, Some(_)) => {
                return Err("[projection] is for interaction = \"projection\" only".into());
            }
            (_, None) => return Ok(()),
        };
        let (width, dim) = (self.concatenated_width(), self.bottom_width());
        for (name, sizes) in [("projection left", left), ("projection right", right)] {
            check_sizes(name, sizes)?;
            let last = sizes.last().copied().unwrap_or(0);
            if sizes[0] != width || last % dim != 0 {
                return Err(format!(
                    "{name} = {sizes:?} must begin with {width}, all features side by side, and \
                     end with a multiple of {dim}, the bottom's width"
                ));
            }
        }
        Ok(())
    }

    fn check_table(&self, table: &TableSpec) -> Result<(), String> {
        let TableSpec { name, rows, dim, .. } = table;
        if !(1..=ROWS_MAX).contains(rows) {
            return Err(format!("table `{name}` has {rows} rows; 1 to {ROWS_MAX} are possible"));
        }
        if !(1..=WIDTH_MAX).contains(dim) {
            return Err(format!("table `{name}` has dim {dim}; 1 to {WIDTH_MAX} is possible"));
        }
        let products = matches!(self.interaction, Interaction::Dot | Interaction::DotItself);
        if products && *dim != self.bottom_width() {
            let width = self.bottom_width();
            return Err(format!(
                "table `{name}` has dim {dim}, and dot products need the bottom's width, {width}"
            ));
        }
        Ok(())
    }

    /// All tensors in the order of the file, small ones first.
    pub fn tensors(&self) -> Vec<(Part, Entry)> {
        let mut tensors = Vec::new();
        let mut mlp = |name: &str, sizes: &[usize], parts: [fn(usize) -> Part; 2]| {
            for (layer, size) in sizes.windows(2).enumerate() {
                // Odd places are the activations between.
                let place = layer * 2;
                let weight =
                    Entry::new(format!("{name}.{place}.weight"), Element::F32, &[size[1], size[0]]);
                let bias = Entry::new(format!("{name}.{place}.bias"), Element::F32, &[size[1]]);
                tensors.extend([(parts[0](layer), weight), (parts[1](layer), bias)]);
            }
        };
        mlp("bot_l", &self.bottom, [Part::BottomWeight, Part::BottomBias]);
        mlp("top_l", &self.top, [Part::TopWeight, Part::TopBias]);
        if let Some(Projection { left, right }) = &self.projection {
            mlp("left_l", left, [Part::LeftWeight, Part::LeftBias]);
            mlp("right_l", right, [Part::RightWeight, Part::RightBias]);
        }
        let width = self.concatenated_width();
        if let Some(Cross { layers, rank }) = self.cross {
            for layer in 0..layers {
                let mut add = |part, name: &str, shape: &[usize]| {
                    let name = format!("cross_l.{layer}.{name}");
                    tensors.push((part, Entry::new(name, Element::F32, shape)));
                };
                add(Part::CrossW(layer), "w", &[width, rank]);
                add(Part::CrossV(layer), "v", &[rank, width]);
                add(Part::CrossBias(layer), "bias", &[width]);
            }
        }
        for (index, table) in self.tables.iter().enumerate() {
            if table.shares.is_none() {
                tensors.extend(table.tensors(index));
            }
        }
        tensors
    }
}

/// `owner` is the table that `table` names, if it stands before it.
fn check_sharing(table: &TableSpec, owner: Option<&TableSpec>, name: &str) -> Result<(), String> {
    let TableSpec { name: own, rows, dim, dtype, .. } = table;
    let Some(owner) = owner.filter(|owner| owner.shares.is_none()) else {
        return Err(format!(
            "table `{own}` shares `{name}`, and no table before it with rows of its own has that name"
        ));
    };
    if (owner.rows, owner.dim, owner.dtype) != (*rows, *dim, *dtype) {
        return Err(format!(
            "table `{own}` shares `{name}`, and differs from it in rows, dim or dtype"
        ));
    }
    Ok(())
}

impl TableSpec {
    fn tensors(&self, index: usize) -> Vec<(Part, Entry)> {
        let entry = |kind: &str, dtype, width| {
            Entry::new(format!("emb_l.{index}.{kind}"), dtype, &[self.rows, width])
        };
        match element(self.dtype) {
            Some(dtype) => vec![(Part::Weight(index), entry("weight", dtype, self.dim))],
            None => vec![
                (Part::Rows(index), entry("rows", Element::U8, self.row_bytes())),
                (Part::Params(index), entry("params", Element::F16, 2)),
            ],
        }
    }

    /// Bytes from one row to the next.
    pub fn row_bytes(&self) -> usize {
        self.dtype.row_bytes(self.dim)
    }

    /// Bytes of the rows with their scales and biases; 0 where another table owns them.
    pub fn bytes(&self) -> u64 {
        if self.shares.is_some() {
            return 0;
        }
        let params = if self.dtype.is_quantised() { 4 } else { 0 };
        self.rows as u64 * (self.row_bytes() + params) as u64
    }
}

/// The element type of a table in the file; `None` where it is quantised.
pub fn element(dtype: Dtype) -> Option<Element> {
    match dtype {
        Dtype::F32 => Some(Element::F32),
        Dtype::F16 => Some(Element::F16),
        Dtype::Bf16 => Some(Element::Bf16),
        Dtype::Int8 | Dtype::Int4 => None,
    }
}

//! Models of other programs. They are recognised by the names of their tensors, and their shape
//! follows from the tensors' shapes. Differences in convention, such as the order of products, are
//! removed here once, so that no other module knows about them.

mod batched;
mod features;
mod interaction;
mod names;

use std::borrow::Cow;
use std::path::Path;

use hither_data::{Checkpoint, Dtype as Element, Tensor};
use hither_kernels::bag::quant::Foreign;
use hither_kernels::bag::{Dtype, Pooling};

use crate::Error;
use crate::model::{
    Conversion, Cross, Interaction, Part, Projection, Source, Spec, TableSpec, shown, write,
};
use batched::Batched;
use features::Feature;
use names::{Family, Names};

/// Facts that a checkpoint does not contain.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The model's name; `None` takes that of the file.
    pub name: Option<String>,
    /// The interaction, where shapes allow several.
    pub interaction: Option<Interaction>,
    /// Pooling of all tables; `None` means sum.
    pub pooling: Option<Pooling>,
    /// Pooling of single features, where it differs.
    pub poolings: Vec<(String, Pooling)>,
    /// Tables in the order of the features that look them up, each as `TABLE` or `FEATURE=TABLE`.
    /// A table that is named several times serves several features.
    pub tables: Option<Vec<String>>,
    /// The layout of tables that are bytes, where the file does not say it.
    pub rows: Option<Foreign>,
    /// Whether the outputs are logits; `None` means as usual for the program that saved the model.
    pub logits: Option<bool>,
}

/// A model of another program, understood and ready to be written in our form.
#[derive(Debug)]
pub struct Import<'a> {
    pub spec: Spec,
    /// What a user should know about how the file was understood.
    pub notes: Vec<String>,
    tables: Vec<Source>,
    bottom: Vec<Layer<'a>>,
    top: Vec<Layer<'a>>,
    cross: Vec<[Cow<'a, [f32]>; 3]>,
    /// The left and the right MLP.
    projection: [Vec<Layer<'a>>; 2],
}

#[derive(Debug)]
struct Layer<'a> {
    weight: Cow<'a, [f32]>,
    bias: Cow<'a, [f32]>,
}

impl<'a> Import<'a> {
    pub fn read(checkpoint: &'a Checkpoint, options: &Options) -> Result<Self, Error> {
        let names = Names::find(checkpoint)?;
        let mut notes = notes(&names);
        let batched = Batched::read(checkpoint, &names, options)?;
        let features = features::find(checkpoint, &names, options, batched.as_ref(), &mut notes)?;
        let file = File { checkpoint, options, names: &names, features: &features, batched };
        // FBGEMM pads rows, and their width alone does not say by how much. Only one reading fits
        // the inputs of the top MLP.
        let mut import = file.read(Padding::None).or_else(|error| match options.rows {
            Some(_) => file.read(Padding::To16).map_err(|_| error),
            None => Err(error),
        })?;
        import.notes = notes;
        Ok(import)
    }

    /// Writes the model's directory; `done` is told the bytes of tables as they are written.
    pub fn write(&self, dir: &Path, force: bool, done: &dyn Fn(u64)) -> Result<(), Error> {
        write(dir, &self.spec, force, |part, _, writer| {
            let floats: &[f32] = match part {
                Part::BottomWeight(layer) => &self.bottom[layer].weight,
                Part::BottomBias(layer) => &self.bottom[layer].bias,
                Part::TopWeight(layer) => &self.top[layer].weight,
                Part::TopBias(layer) => &self.top[layer].bias,
                Part::CrossW(layer) => &self.cross[layer][0],
                Part::CrossV(layer) => &self.cross[layer][1],
                Part::CrossBias(layer) => &self.cross[layer][2],
                Part::LeftWeight(layer) => &self.projection[0][layer].weight,
                Part::LeftBias(layer) => &self.projection[0][layer].bias,
                Part::RightWeight(layer) => &self.projection[1][layer].weight,
                Part::RightBias(layer) => &self.projection[1][layer].bias,
                Part::Weight(index) | Part::Rows(index) | Part::Params(index) => {
                    let (source, table) = (&self.tables[index], &self.spec.tables[index]);
                    return Conversion { source, table }.write(writer, done);
                }
            };
            Ok(writer.write(bytemuck::cast_slice(floats))?)
        })
    }
}

fn notes(names: &Names) -> Vec<String> {
    let Some(first) = names.ignored.first() else { return Vec::new() };
    let (tensors, are) = match names.ignored.len() {
        1 => ("1 tensor".into(), "is"),
        count => (format!("{count} tensors"), "are"),
    };
    vec![format!("{tensors} {are} not part of the model and {are} left out, such as `{first}`")]
}

/// How rows of bytes end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Padding {
    None,
    /// With unused bytes up to a multiple of 16, after as many elements as the bottom MLP has
    /// outputs.
    To16,
}

/// Multiple of bytes to which FBGEMM pads rows for TorchRec.
const ROW_ALIGNMENT: usize = 16;

struct File<'a, 'o> {
    checkpoint: &'a Checkpoint,
    options: &'o Options,
    names: &'o Names,
    features: &'o [Feature],
    batched: Option<Batched>,
}

impl<'a> File<'a, '_> {
    fn read(&self, padding: Padding) -> Result<Import<'a>, Error> {
        let (names, options) = (self.names, self.options);
        let (bottom_sizes, bottom) = self.mlp(&names.bottom, "bottom")?;
        let (top_sizes, mut top) = self.mlp(&names.top, "top")?;
        let bottom_width = bottom_sizes.last().copied().unwrap_or(0);
        let (tables, sources) = self.tables(bottom_width, padding)?;
        let stem = self.checkpoint.path.file_stem().unwrap_or_default().to_string_lossy();
        let stem = stem.strip_suffix(".safetensors.index").unwrap_or(&stem);
        let mut spec = Spec {
            name: options.name.clone().unwrap_or_else(|| stem.into()),
            interaction: Interaction::Dcn,
            sigmoid: !options.logits.unwrap_or(names.family == Family::Torchrec),
            bottom: bottom_sizes,
            top: top_sizes,
            cross: None,
            projection: None,
            tables,
        };
        let cross = self.cross(&mut spec)?;
        let projection = self.projection(&mut spec)?;
        spec.interaction = interaction::choose(&spec, names, options).map_err(|p| self.bad(p))?;
        spec.check().map_err(|problem| self.bad(problem))?;
        if spec.interaction == Interaction::Dot && names.family == Family::Torchrec {
            let first = top[0].weight.to_mut();
            lower_triangle_columns(first, spec.bottom_width(), spec.tables.len() + 1);
        }
        Ok(Import { spec, notes: Vec::new(), tables: sources, bottom, top, cross, projection })
    }

    fn bad(&self, problem: String) -> Error {
        Error::Import { path: self.checkpoint.path.clone(), problem }
    }

    fn tensor(&self, name: &str) -> Result<&'a Tensor, Error> {
        self.checkpoint
            .tensors
            .get(name)
            .ok_or_else(|| Error::Missing { path: self.checkpoint.path.clone(), name: name.into() })
    }

    fn mismatch(&self, name: &str, tensor: &Tensor, expected: impl Into<String>) -> Error {
        Error::Mismatch {
            path: self.checkpoint.path.clone(),
            name: name.into(),
            found: shown(tensor.dtype, &tensor.shape),
            expected: expected.into(),
        }
    }

    /// Floats of the expected shape; dimensions of size 1 do not count.
    fn floats(&self, name: &str, shape: &[usize]) -> Result<Cow<'a, [f32]>, Error> {
        let tensor = self.tensor(name)?;
        let without_ones = |shape: &[usize]| -> Vec<usize> {
            shape.iter().copied().filter(|size| *size != 1).collect()
        };
        let floats = tensor.as_f32().filter(|_| without_ones(&tensor.shape) == without_ones(shape));
        floats.ok_or_else(|| self.mismatch(name, tensor, format!("floats {shape:?}")))
    }

    fn mlp(&self, layers: &[String], which: &str) -> Result<(Vec<usize>, Vec<Layer<'a>>), Error> {
        let (mut sizes, mut found) = (Vec::new(), Vec::new());
        for layer in layers {
            let name = format!("{layer}.weight");
            let tensor = self.tensor(&name)?;
            let [outputs, inputs] = tensor.shape[..] else {
                return Err(self.mismatch(&name, tensor, "a matrix [outputs, inputs]"));
            };
            let inputs = *sizes.last().unwrap_or(&inputs);
            let weight = self.floats(&name, &[outputs, inputs])?;
            let bias = self.floats(&format!("{layer}.bias"), &[outputs])?;
            if sizes.is_empty() {
                sizes.push(inputs);
            }
            sizes.push(outputs);
            found.push(Layer { weight, bias });
        }
        if found.is_empty() {
            return Err(self.bad(format!("the {which} MLP has no layers")));
        }
        Ok((sizes, found))
    }

    /// One table per feature; features that look up the same one share it.
    fn tables(
        &self,
        bottom_width: usize,
        padding: Padding,
    ) -> Result<(Vec<TableSpec>, Vec<Source>), Error> {
        let (mut specs, mut sources) = (Vec::<TableSpec>::new(), Vec::new());
        for (index, Feature { name, table }) in self.features.iter().enumerate() {
            let (rows, dim, dtype, source) = self.table(*table, bottom_width, padding)?;
            let first = self.features[..index].iter().find(|feature| feature.table == *table);
            specs.push(TableSpec {
                name: name.clone(),
                rows,
                dim,
                dtype,
                pooling: self.options.pooling.unwrap_or(Pooling::Sum),
                padding: None,
                shares: first.map(|first| first.name.clone()),
            });
            sources.push(source);
        }
        for (name, pooling) in &self.options.poolings {
            let table = specs.iter_mut().find(|table| table.name == *name);
            let known = || self.features.iter().map(|f| f.name.as_str()).collect::<Vec<_>>();
            let table = table.ok_or_else(|| Error::UnknownTable {
                name: name.clone(),
                known: known().join(", "),
            })?;
            table.pooling = *pooling;
        }
        Ok((specs, sources))
    }

    /// Rows, dim, element type and bytes of a table.
    fn table(
        &self,
        index: usize,
        bottom_width: usize,
        padding: Padding,
    ) -> Result<(usize, usize, Dtype, Source), Error> {
        let (table, name) = &self.names.tables[index];
        let tensor = self.tensor(name)?;
        let [rows, width] = tensor.shape[..] else {
            return Err(self.mismatch(name, tensor, "a matrix [rows, dim]"));
        };
        let bytes = tensor.bytes.clone();
        let (dim, dtype, source) = match (tensor.dtype, &self.batched, self.options.rows) {
            (Element::F16, ..) => (width, Dtype::F16, Source::Float(Element::F16, bytes)),
            (Element::Bf16, ..) => (width, Dtype::Bf16, Source::Float(Element::Bf16, bytes)),
            (Element::F32 | Element::F64, ..) => {
                (width, Dtype::F32, Source::Float(tensor.dtype, bytes))
            }
            (Element::U8, Some(batched), _) => {
                let table = batched.table(index, table, [rows, width], bytes);
                table.map_err(|problem| self.bad(problem))?
            }
            (Element::U8, None, Some(layout)) => {
                let dim = dim_of_bytes(layout, width, bottom_width, padding).ok_or_else(|| {
                    self.mismatch(name, tensor, "rows long enough for scale and bias")
                })?;
                let dtype = if layout.is_int4() { Dtype::Int4 } else { Dtype::Int8 };
                (dim, dtype, Source::Foreign(layout, width, bytes))
            }
            (Element::U8, None, None) => {
                let expected = "floats; name the layout of quantised rows with --rows";
                return Err(self.mismatch(name, tensor, expected));
            }
            _ => return Err(self.mismatch(name, tensor, "floats")),
        };
        Ok((rows, dim, dtype, source))
    }

    fn projection(&self, spec: &mut Spec) -> Result<[Vec<Layer<'a>>; 2], Error> {
        let [left_names, right_names] = &self.names.projection;
        if left_names.is_empty() && right_names.is_empty() {
            return Ok([Vec::new(), Vec::new()]);
        }
        let (left, left_layers) = self.mlp(left_names, "left projection")?;
        let (right, right_layers) = self.mlp(right_names, "right projection")?;
        if left[0] != spec.concatenated_width() {
            let hint = interaction::sharing(spec, self.names, left[0]).unwrap_or_default();
            return Err(self.bad(format!(
                "`{}.weight` takes {} inputs; {} features side by side have {}{hint}",
                left_names[0],
                left[0],
                spec.tables.len(),
                spec.concatenated_width()
            )));
        }
        spec.projection = Some(Projection { left, right });
        Ok([left_layers, right_layers])
    }

    fn cross(&self, spec: &mut Spec) -> Result<Vec<[Cow<'a, [f32]>; 3]>, Error> {
        let names = &self.names.cross;
        let Some([first, ..]) = names.first() else { return Ok(Vec::new()) };
        let width = spec.concatenated_width();
        let tensor = self.tensor(first)?;
        let rank = match tensor.shape[..] {
            [found, rank] if found == width => rank,
            [found, _] => {
                let hint = interaction::sharing(spec, self.names, found);
                let expected = format!("floats [{width}, rank]{}", hint.unwrap_or_default());
                return Err(self.mismatch(first, tensor, expected));
            }
            _ => return Err(self.mismatch(first, tensor, format!("floats [{width}, rank]"))),
        };
        spec.cross = Some(Cross { layers: names.len(), rank });
        let layer = |[w, v, bias]: &[String; 3]| {
            Ok([
                self.floats(w, &[width, rank])?,
                self.floats(v, &[rank, width])?,
                self.floats(bias, &[width])?,
            ])
        };
        names.iter().map(layer).collect()
    }
}

/// The dim of quantised rows of `width` bytes; `None` where they are too short.
fn dim_of_bytes(
    layout: Foreign,
    width: usize,
    bottom_width: usize,
    padding: Padding,
) -> Option<usize> {
    let padded = layout.row_bytes(bottom_width).next_multiple_of(ROW_ALIGNMENT);
    if padding == Padding::To16 && width == padded {
        return Some(bottom_width);
    }
    let dim = layout.dim(width)?;
    // The last byte of an odd number of int4 elements is half empty.
    let odd = layout.is_int4() && dim == bottom_width + 1;
    Some(if odd { bottom_width } else { dim })
}

/// TorchRec orders the products by the upper triangle, row by row; we order them by the lower one.
/// Moving the columns of the layer that reads the products makes up for it.
fn lower_triangle_columns(weight: &mut [f32], dense: usize, features: usize) {
    let pairs = features * (features - 1) / 2;
    let mut moved = vec![0.0; pairs];
    for row in weight.chunks_exact_mut(dense + pairs) {
        let products = &mut row[dense..];
        for i in 1..features {
            for j in 0..i {
                let upper = j * features - j * (j + 1) / 2 + (i - j - 1);
                moved[i * (i - 1) / 2 + j] = products[upper];
            }
        }
        products.copy_from_slice(&moved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_the_upper_triangle_go_to_the_lower() {
        // Pairs of 4 features in TorchRec's order, by their names: 01 02 03 12 13 23.
        let mut weight = vec![9.0, 1.0, 2.0, 3.0, 12.0, 13.0, 23.0];
        lower_triangle_columns(&mut weight, 1, 4);
        assert_eq!(weight, [9.0, 1.0, 2.0, 12.0, 3.0, 13.0, 23.0]);
    }
}

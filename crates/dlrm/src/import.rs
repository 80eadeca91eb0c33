//! Models of other programs: recognised by the names of their tensors, their shape told from the
//! tensors' shapes, and what they do differently made the same once, here.

mod names;

use std::borrow::Cow;
use std::path::Path;

use hither_data::{Checkpoint, Dtype as Element, Tensor};
use hither_kernels::bag::quant::Foreign;
use hither_kernels::bag::{Dtype, Pooling};

use crate::Error;
use crate::model::{Conversion, Cross, Interaction, Part, Source, Spec, TableSpec, shown, write};
use names::{Family, Names};

/// What no file says.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The model's name; else that of the file.
    pub name: Option<String>,
    /// Where shapes allow several.
    pub interaction: Option<Interaction>,
    /// Of all tables; sums if nothing else is said.
    pub pooling: Option<Pooling>,
    /// The tables in the order of the features that look them up.
    pub tables: Option<Vec<String>>,
    /// The layout of tables that are bytes.
    pub rows: Option<Foreign>,
    /// Whether the outputs are logits; else as the family of names has it.
    pub logits: Option<bool>,
}

/// A model of another program, understood and ready to be written as ours.
#[derive(Debug)]
pub struct Import<'a> {
    pub spec: Spec,
    /// What a user should know of how the file was understood.
    pub notes: Vec<String>,
    tables: Vec<Source>,
    bottom: Vec<Layer<'a>>,
    top: Vec<Layer<'a>>,
    cross: Vec<[Cow<'a, [f32]>; 3]>,
}

#[derive(Debug)]
struct Layer<'a> {
    weight: Cow<'a, [f32]>,
    bias: Cow<'a, [f32]>,
}

impl<'a> Import<'a> {
    pub fn read(checkpoint: &'a Checkpoint, options: &Options) -> Result<Self, Error> {
        let mut names = Names::find(checkpoint)?;
        let mut notes = notes(&names);
        reorder(&mut names, options, checkpoint.order.is_some(), &mut notes)?;
        let file = File { checkpoint, options };
        let (bottom_sizes, bottom) = file.mlp(&names.bottom, "bottom")?;
        let (top_sizes, mut top) = file.mlp(&names.top, "top")?;
        let bottom_width = bottom_sizes.last().copied().unwrap_or(0);
        let (tables, sources) = file.tables(&names.tables, bottom_width)?;
        let stem = checkpoint.path.file_stem().unwrap_or_default().to_string_lossy();
        let mut spec = Spec {
            name: options.name.clone().unwrap_or_else(|| stem.into()),
            interaction: Interaction::Dcn,
            sigmoid: !options.logits.unwrap_or(names.family == Family::Torchrec),
            bottom: bottom_sizes,
            top: top_sizes,
            cross: None,
            tables,
        };
        let cross = file.cross(&names.cross, &mut spec)?;
        if spec.cross.is_none() {
            spec.interaction = file.interaction(&spec, &names, &mut notes)?;
        }
        let path = checkpoint.path.clone();
        spec.check().map_err(|problem| Error::Import { path, problem })?;
        if spec.interaction == Interaction::Dot && names.family == Family::Torchrec {
            let first = top[0].weight.to_mut();
            lower_triangle_columns(first, spec.bottom_width(), spec.tables.len() + 1);
        }
        Ok(Self { spec, notes, tables: sources, bottom, top, cross })
    }

    /// Writes the model's directory; `done` hears of the bytes of tables as they are written.
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
    let count = names.ignored.len();
    vec![format!("{count} tensors are no part of the model and stay behind, such as `{first}`")]
}

/// Puts the tables into the order that the user gives, and tells of one that was guessed.
fn reorder(
    names: &mut Names,
    options: &Options,
    order_is_kept: bool,
    notes: &mut Vec<String>,
) -> Result<(), Error> {
    let known = names.tables.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    let Some(order) = &options.tables else {
        if names.family == Family::Torchrec && !order_is_kept {
            notes.push(format!("safetensors keeps no order; tables are taken as {known}"));
        }
        return Ok(());
    };
    let mut sorted = Vec::with_capacity(order.len());
    for wanted in order {
        let at =
            names.tables.iter().position(|(name, _)| name == wanted).ok_or_else(|| {
                Error::UnknownTable { name: wanted.clone(), known: known.clone() }
            })?;
        sorted.push(names.tables.remove(at));
    }
    // Those that were not mentioned follow as they were.
    sorted.append(&mut names.tables);
    names.tables = sorted;
    Ok(())
}

struct File<'a, 'o> {
    checkpoint: &'a Checkpoint,
    options: &'o Options,
}

impl<'a> File<'a, '_> {
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

    /// Floats of the shape that is expected; single dimensions do not count.
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
            let problem = format!("the {which} MLP has no layers");
            return Err(Error::Import { path: self.checkpoint.path.clone(), problem });
        }
        Ok((sizes, found))
    }

    fn tables(
        &self,
        names: &[(String, String)],
        bottom_width: usize,
    ) -> Result<(Vec<TableSpec>, Vec<Source>), Error> {
        let table = |(name, tensor_name): &(String, String)| {
            let tensor = self.tensor(tensor_name)?;
            let [rows, width] = tensor.shape[..] else {
                return Err(self.mismatch(tensor_name, tensor, "a matrix [rows, dim]"));
            };
            let bytes = tensor.bytes.clone();
            let (dim, dtype, source) = match (tensor.dtype, self.options.rows) {
                (Element::F16, _) => (width, Dtype::F16, Source::Float(Element::F16, bytes)),
                (Element::Bf16, _) => (width, Dtype::Bf16, Source::Float(Element::Bf16, bytes)),
                (Element::F32 | Element::F64, _) => {
                    (width, Dtype::F32, Source::Float(tensor.dtype, bytes))
                }
                (Element::U8, Some(layout)) => {
                    let mut dim = layout.dim(width).ok_or_else(|| {
                        self.mismatch(tensor_name, tensor, "rows long enough for scale and bias")
                    })?;
                    // Half a byte too much at the end of rows of an odd dim.
                    if layout.is_int4() && dim == bottom_width + 1 {
                        dim = bottom_width;
                    }
                    let dtype = if layout.is_int4() { Dtype::Int4 } else { Dtype::Int8 };
                    (dim, dtype, Source::Foreign(layout, bytes))
                }
                (Element::U8, None) => {
                    let expected = "floats, or the layout of such rows in --rows";
                    return Err(self.mismatch(tensor_name, tensor, expected));
                }
                _ => return Err(self.mismatch(tensor_name, tensor, "floats")),
            };
            let pooling = self.options.pooling.unwrap_or(Pooling::Sum);
            let name = name.clone();
            Ok((TableSpec { name, rows, dim, dtype, pooling, padding: None }, source))
        };
        Ok(names.iter().map(table).collect::<Result<Vec<_>, Error>>()?.into_iter().unzip())
    }

    fn cross(
        &self,
        names: &[[String; 3]],
        spec: &mut Spec,
    ) -> Result<Vec<[Cow<'a, [f32]>; 3]>, Error> {
        let Some([first, ..]) = names.first() else { return Ok(Vec::new()) };
        let width = spec.concatenated_width();
        let tensor = self.tensor(first)?;
        let rank = match tensor.shape[..] {
            [found, rank] if found == width => rank,
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

    /// Told from the width of what the top MLP takes.
    fn interaction(
        &self,
        spec: &Spec,
        names: &Names,
        notes: &mut Vec<String>,
    ) -> Result<Interaction, Error> {
        let found = spec.top[0];
        let width = |interaction| Spec { interaction, ..spec.clone() }.interaction_width();
        let (dot, cat) = (width(Interaction::Dot), width(Interaction::Cat));
        let dims_agree = spec.tables.iter().all(|table| table.dim == spec.bottom_width());
        let fits = |kind| match kind {
            Interaction::Dot => found == dot && dims_agree,
            Interaction::Cat => found == cat,
            Interaction::Dcn => false,
        };
        if let Some(wanted) = self.options.interaction.filter(|wanted| fits(*wanted)) {
            return Ok(wanted);
        }
        let top = format!("{}.weight", names.top[0]);
        let tensor = self.tensor(&top)?;
        let itself = dot + spec.tables.len() + 1;
        match (fits(Interaction::Dot), fits(Interaction::Cat)) {
            _ if self.options.interaction.is_some() => {}
            (true, both) => {
                if both {
                    notes
                        .push("dot and cat both fit; dot is taken, --interaction says else".into());
                }
                return Ok(Interaction::Dot);
            }
            (false, true) => return Ok(Interaction::Cat),
            (false, false) if found == itself => {
                let problem = format!(
                    "`{top}` is of products of features with themselves too, which is not supported"
                );
                return Err(Error::Import { path: self.checkpoint.path.clone(), problem });
            }
            (false, false) => {}
        }
        let expected = format!("{dot} inputs for dot products or {cat} for a concatenation");
        Err(self.mismatch(&top, tensor, expected))
    }
}

/// TorchRec takes the products of the upper triangle row by row, we those of the lower: a pair
/// `i > j` stands at another place. Moving the columns of the layer that reads them makes up for it.
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

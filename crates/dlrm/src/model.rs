//! A model on disk: a directory with `model.toml`, its shape, and `model.safetensors`, its
//! tensors under the names of facebookresearch/dlrm. Opening maps the file and checks every shape.

mod export;
mod rows;
mod spec;
mod write;

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use hither_data::{Bytes, Checkpoint, Dtype as Element, Tensor};
use hither_kernels::bag::Dtype;

use crate::Error;
pub use export::Layout;
pub(crate) use rows::floats;
pub(crate) use rows::write_params;
pub use rows::{Conversion, Source, store};
pub use spec::{Cross, Interaction, Part, Projection, ROWS_MAX, Spec, TableSpec, element};
pub use write::write;

pub const SPEC_FILE: &str = "model.toml";
pub const TENSORS_FILE: &str = "model.safetensors";

/// A model whose tensors are mapped and checked.
#[derive(Clone, Debug)]
pub struct Model {
    pub dir: PathBuf,
    pub spec: Spec,
    tensors: Checkpoint,
}

/// A table as it lies in the mapped file.
#[derive(Clone, Debug)]
pub struct TableData<'a> {
    pub spec: &'a TableSpec,
    /// Rows one after the other, [`TableSpec::row_bytes`] each.
    pub rows: &'a Bytes,
    /// Scale and bias of each row as two half floats, where the table is quantised.
    pub params: Option<&'a Bytes>,
}

/// A layer of an MLP: `outputs` rows of `inputs` weights.
#[derive(Clone, Debug)]
pub struct Layer<'a> {
    pub inputs: usize,
    pub outputs: usize,
    pub weight: Cow<'a, [f32]>,
    pub bias: Cow<'a, [f32]>,
}

/// A cross layer: `w` is [width, rank], `v` is [rank, width].
#[derive(Clone, Debug)]
pub struct CrossLayer<'a> {
    pub w: Cow<'a, [f32]>,
    pub v: Cow<'a, [f32]>,
    pub bias: Cow<'a, [f32]>,
}

impl Model {
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, Error> {
        let dir = dir.as_ref();
        let toml = dir.join(SPEC_FILE);
        if !toml.exists() {
            return Err(match dir.exists() {
                true => Error::NoModel { dir: dir.into() },
                false => Error::io("open", dir)(std::io::ErrorKind::NotFound.into()),
            });
        }
        let spec = Spec::read(&toml)?;
        let tensors = Checkpoint::open(dir.join(TENSORS_FILE))?;
        let model = Self { dir: dir.into(), spec, tensors };
        model.check()?;
        Ok(model)
    }

    /// Checks that the file has exactly the tensors that the description implies.
    fn check(&self) -> Result<(), Error> {
        let path = &self.tensors.path;
        let promised = self.spec.tensors();
        for (_, entry) in &promised {
            let name = entry.name.clone();
            let Some(found) = self.tensors.tensors.get(&name) else {
                return Err(Error::Missing { path: path.clone(), name });
            };
            if found.dtype != entry.dtype || found.shape != entry.shape {
                let (found, expected) =
                    (shown(found.dtype, &found.shape), shown(entry.dtype, &entry.shape));
                return Err(Error::Mismatch { path: path.clone(), name, found, expected });
            }
        }
        if self.tensors.tensors.len() > promised.len() {
            let names: std::collections::BTreeSet<_> =
                promised.iter().map(|(_, entry)| &entry.name).collect();
            let extra = self.tensors.tensors.keys().find(|name| !names.contains(name));
            let name = extra.cloned().unwrap_or_default();
            return Err(Error::Unexpected { path: path.clone(), name });
        }
        Ok(())
    }

    /// A tensor whose presence was checked on opening.
    fn tensor(&self, name: &str) -> &Tensor {
        &self.tensors.tensors[name]
    }

    fn floats(&self, name: &str) -> Cow<'_, [f32]> {
        self.tensor(name).as_f32().unwrap_or_default()
    }

    /// One table per sparse feature; tables that share rows have the same bytes.
    pub fn tables(&self) -> impl ExactSizeIterator<Item = TableData<'_>> {
        self.spec.tables.iter().enumerate().map(|(index, spec)| {
            let index = self.spec.owner(index);
            let bytes = |kind: &str| &self.tensor(&format!("emb_l.{index}.{kind}")).bytes;
            match spec.dtype.is_quantised() {
                false => TableData { spec, rows: bytes("weight"), params: None },
                true => TableData { spec, rows: bytes("rows"), params: Some(bytes("params")) },
            }
        })
    }

    pub fn bottom(&self) -> Vec<Layer<'_>> {
        self.mlp("bot_l", &self.spec.bottom)
    }

    pub fn top(&self) -> Vec<Layer<'_>> {
        self.mlp("top_l", &self.spec.top)
    }

    fn mlp(&self, name: &str, sizes: &[usize]) -> Vec<Layer<'_>> {
        let layers = sizes.windows(2).enumerate();
        layers
            .map(|(layer, size)| Layer {
                inputs: size[0],
                outputs: size[1],
                weight: self.floats(&format!("{name}.{}.weight", layer * 2)),
                bias: self.floats(&format!("{name}.{}.bias", layer * 2)),
            })
            .collect()
    }

    pub fn cross(&self) -> Vec<CrossLayer<'_>> {
        let layers = self.spec.cross.map_or(0, |cross| cross.layers);
        (0..layers)
            .map(|layer| CrossLayer {
                w: self.floats(&format!("cross_l.{layer}.w")),
                v: self.floats(&format!("cross_l.{layer}.v")),
                bias: self.floats(&format!("cross_l.{layer}.bias")),
            })
            .collect()
    }

    /// The left and the right MLP of a projection.
    pub fn projection(&self) -> Option<[Vec<Layer<'_>>; 2]> {
        let Projection { left, right } = self.spec.projection.as_ref()?;
        Some([self.mlp("left_l", left), self.mlp("right_l", right)])
    }

    /// The bytes of a tensor of this model, as they lie in the file.
    pub fn bytes(&self, name: &str) -> Option<&Bytes> {
        self.tensors.tensors.get(name).map(|tensor| &tensor.bytes)
    }

    /// Writes the same model with other types of elements, one per table; tables that share rows
    /// take the type of the rows' owner.
    pub fn convert(
        &self,
        dtypes: &[Dtype],
        dir: &Path,
        force: bool,
        done: &dyn Fn(u64),
    ) -> Result<Spec, Error> {
        let mut spec = self.spec.clone();
        for (index, table) in spec.tables.iter_mut().enumerate() {
            table.dtype = dtypes[self.spec.owner(index)];
        }
        let sources: Vec<Source> = self.tables().map(|table| table.source()).collect();
        for (table, source) in spec.tables.iter().zip(&sources) {
            Conversion { source, table }.check()?;
        }
        write(dir, &spec, force, |part, entry, writer| match part {
            Part::Weight(index) | Part::Rows(index) => {
                let (source, table) = (&sources[index], &spec.tables[index]);
                Conversion { source, table }.write(writer, done)
            }
            _ => Ok(writer.write(&self.tensor(&entry.name).bytes)?),
        })?;
        Ok(spec)
    }
}

impl TableData<'_> {
    pub fn source(&self) -> Source {
        let rows = self.rows.clone();
        match self.params {
            Some(params) => Source::Quantised(self.spec.dtype, rows, params.clone()),
            None => Source::Float(element(self.spec.dtype).unwrap_or(Element::F32), rows),
        }
    }
}

/// A tensor in a message: `fp32 [1000, 128]`.
pub(crate) fn shown(dtype: Element, shape: &[usize]) -> String {
    format!("{dtype} {shape:?}")
}

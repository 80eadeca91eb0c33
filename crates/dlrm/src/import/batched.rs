//! TorchRec's quantised modules. FBGEMM packs the tables of one pooling into one module (`tbes.N`),
//! whose tensors say for every feature how many rows its table has, how long they are, and what its
//! elements are. The rows themselves are bytes under the names of the tables.

use hither_data::{Bytes, Checkpoint, Dtype as Element};
use hither_kernels::bag::Dtype;
use hither_kernels::bag::quant::Foreign;

use super::names::Names;
use super::{Error, Options, ROW_ALIGNMENT};
use crate::model::Source;

/// The features of all modules, in their order.
#[derive(Debug)]
pub struct Batched {
    /// Modules; tables of different poolings are in different ones.
    pub groups: usize,
    lookups: Vec<Lookup>,
    /// How many features look up each table; `None` where the file does not tell.
    pub lookups_per_table: Option<Vec<usize>>,
}

/// What a feature looks up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lookup {
    rows: usize,
    dim: usize,
    /// FBGEMM's number of the element type.
    kind: i64,
}

impl Batched {
    /// Reads all quantised modules; `None` if the file has none.
    pub fn read(
        checkpoint: &Checkpoint,
        names: &Names,
        options: &Options,
    ) -> Result<Option<Self>, Error> {
        let bad = |problem| Error::Import { path: checkpoint.path.clone(), problem };
        let is_bytes =
            |name: &str| checkpoint.tensors.get(name).is_some_and(|t| t.dtype == Element::U8);
        let any_bytes = names.tables.iter().any(|(_, tensor)| is_bytes(tensor));
        if options.rows.is_some() && !any_bytes {
            return Err(bad("--rows is for tables of bytes, and the file has none".into()));
        }
        if names.batched.is_empty() {
            return Ok(None);
        }
        if options.rows.is_some() {
            return Err(bad(
                "the file itself says how its rows are packed; leave out --rows".into()
            ));
        }
        let mut lookups = Vec::new();
        for module in &names.batched {
            let integers = |name: &str| {
                let tensor = checkpoint.tensors.get(&format!("{module}{name}"));
                tensor.and_then(|tensor| tensor.as_i64()).ok_or_else(|| {
                    bad(format!("`{module}{name}` is missing; save the whole state_dict()"))
                })
            };
            for pruned in ["index_remappings_array", "index_remapping_hash_table"] {
                if integers(pruned).is_ok_and(|remapping| !remapping.is_empty()) {
                    return Err(bad(format!(
                        "`{module}{pruned}`: tables with pruned rows are not supported; import the \
                         model before pruning"
                    )));
                }
            }
            let [ends, rows, kinds] = ["D_offsets", "rows_per_table", "weights_tys"].map(integers);
            let (ends, rows, kinds) = (ends?, rows?, kinds?);
            if ends.len() != rows.len() + 1 || kinds.len() != rows.len() {
                return Err(bad(format!("the tensors of `{module}` differ in their lengths")));
            }
            for ((rows, ends), kind) in rows.iter().zip(ends.windows(2)).zip(kinds.iter()) {
                let dim = ends[1].checked_sub(ends[0]);
                let [Some(rows), Some(dim)] =
                    [Some(*rows), dim].map(|size| size.and_then(|size| usize::try_from(size).ok()))
                else {
                    return Err(bad(format!("`{module}` has a table of a negative size")));
                };
                lookups.push(Lookup { rows, dim, kind: *kind });
            }
        }
        let lookups_per_table = lookups_per_table(&lookups, checkpoint, names);
        Ok(Some(Self { groups: names.batched.len(), lookups, lookups_per_table }))
    }

    pub fn features(&self) -> usize {
        self.lookups.len()
    }

    /// Dim, element type and rows of the table of this index. Where the file does not keep the
    /// order of its tables, it is found by its size.
    pub fn table(
        &self,
        index: usize,
        name: &str,
        [rows, width]: [usize; 2],
        bytes: Bytes,
    ) -> Result<(usize, Dtype, Source), String> {
        let own = self.lookups_per_table.as_ref().map(|counts| {
            let first: usize = counts[..index].iter().sum();
            &self.lookups[first..first + 1]
        });
        let candidates = own.unwrap_or(&self.lookups).iter();
        let mut fitting = candidates.filter(|lookup| lookup.fits(rows, width));
        let Some(Lookup { dim, kind, .. }) = fitting.next().copied() else {
            return Err(match self.lookups.iter().find(|lookup| lookup.rows == rows) {
                Some(Lookup { kind, .. }) if form(*kind).is_none() => format!(
                    "table `{name}` has elements of FBGEMM's type {kind}, which are not supported; \
                     quantise to int8 or int4"
                ),
                _ => format!("table `{name}` is [{rows}, {width}], which fits no table of `tbes`"),
            });
        };
        if fitting.any(|other| (other.dim, other.kind) != (dim, kind)) {
            return Err(format!(
                "table `{name}` is [{rows}, {width}], which fits several tables of `tbes`; import \
                 the model before quantisation"
            ));
        }
        Ok(match form(kind) {
            Some(Form::Quantised(dtype, layout)) => {
                (dim, dtype, Source::Foreign(layout, width, bytes))
            }
            Some(Form::Float(dtype, element)) if width == dim * element.bytes() => {
                (dim, dtype, Source::Float(element, bytes))
            }
            _ => {
                return Err(format!(
                    "table `{name}` has padded rows of floats, which are not supported; import the \
                     model before quantisation"
                ));
            }
        })
    }
}

/// How many features look up each table. FBGEMM lists the features table by table, so that tables
/// of different sizes tell them apart; `None` where they do not, or where their order was lost.
fn lookups_per_table(
    lookups: &[Lookup],
    checkpoint: &Checkpoint,
    names: &Names,
) -> Option<Vec<usize>> {
    checkpoint.order.as_ref()?;
    let size = |(_, tensor): &(String, String)| match checkpoint.tensors.get(tensor)?.shape[..] {
        [rows, width] => Some((rows, width)),
        _ => None,
    };
    let sizes: Vec<_> = names.tables.iter().map(size).collect::<Option<_>>()?;
    let mut counts = Vec::new();
    let mut rest = lookups;
    for tables in sizes.chunk_by(|a, b| a == b) {
        let (rows, width) = tables[0];
        let run = rest.iter().take_while(|lookup| lookup.fits(rows, width)).count();
        rest = &rest[run..];
        match tables.len() {
            1 if run > 0 => counts.push(run),
            count if count == run => counts.extend(vec![1; count]),
            _ => return None,
        }
    }
    rest.is_empty().then_some(counts)
}

impl Lookup {
    /// Whether its table can be this tensor of bytes.
    fn fits(&self, rows: usize, width: usize) -> bool {
        let bytes = match form(self.kind) {
            Some(Form::Quantised(_, layout)) => layout.row_bytes(self.dim),
            Some(Form::Float(_, element)) => self.dim.saturating_mul(element.bytes()),
            None => return false,
        };
        let padded = bytes.checked_next_multiple_of(ROW_ALIGNMENT);
        self.rows == rows && (bytes == width || padded == Some(width))
    }
}

enum Form {
    Quantised(Dtype, Foreign),
    Float(Dtype, Element),
}

/// FBGEMM's numbers of element types; `None` for those that are not supported (int2, fp8, mx4).
fn form(kind: i64) -> Option<Form> {
    Some(match kind {
        0 => Form::Float(Dtype::F32, Element::F32),
        1 => Form::Float(Dtype::F16, Element::F16),
        2 => Form::Quantised(Dtype::Int8, Foreign::FbgemmInt8),
        3 => Form::Quantised(Dtype::Int4, Foreign::FbgemmInt4),
        5 => Form::Float(Dtype::Bf16, Element::Bf16),
        _ => return None,
    })
}

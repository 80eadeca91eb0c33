//! A model for other programs: one safetensors file, quantised rows in their layout.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;

use hither_data::safetensors::{Entry, Writer};
use hither_data::{Bytes, Dtype as Element};
use hither_kernels::bag::Dtype;
use hither_kernels::bag::quant::{Foreign, Params};
use rayon::prelude::*;

use super::{Model, Part, TableData};
use crate::Error;

const BLOCK_BYTES: usize = 32 << 20;

/// The program whose row layout quantised tables get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    Fbgemm,
    Torch,
}

impl FromStr for Layout {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "fbgemm" => Ok(Self::Fbgemm),
            "torch" => Ok(Self::Torch),
            _ => Err(format!("`{name}` is not a layout; expected fbgemm or torch")),
        }
    }
}

impl Layout {
    fn rows(self, dtype: Dtype) -> Option<Foreign> {
        match (self, dtype) {
            (Self::Fbgemm, Dtype::Int8) => Some(Foreign::FbgemmInt8),
            (Self::Fbgemm, Dtype::Int4) => Some(Foreign::FbgemmInt4),
            (Self::Torch, Dtype::Int8) => Some(Foreign::TorchInt8),
            (Self::Torch, Dtype::Int4) => Some(Foreign::TorchInt4),
            (_, Dtype::F32 | Dtype::F16 | Dtype::Bf16) => None,
        }
    }
}

/// The content of an exported tensor.
enum Body<'a> {
    Bytes(&'a Bytes),
    /// Rows of the table of this index, in another program's layout.
    Quantised(usize, Foreign),
}

impl Model {
    /// Quantised tables become bytes named `emb_l.{t}.weight`; other tensors stay as they are. Each
    /// feature gets a table: rows that features share are written once per feature, because
    /// facebookresearch/dlrm knows no sharing.
    pub fn export(&self, layout: Layout, path: &Path, done: &dyn Fn(u64)) -> Result<(), Error> {
        let tables: Vec<TableData<'_>> = self.tables().collect();
        let mut spec = self.spec.clone();
        spec.tables.iter_mut().for_each(|table| table.shares = None);
        let mut parts = Vec::new();
        for (part, entry) in spec.tensors() {
            match part {
                Part::Params(_) => {}
                Part::Rows(index) => {
                    let table = tables[index].spec;
                    let Some(foreign) = layout.rows(table.dtype) else { continue };
                    let shape = [table.rows, foreign.row_bytes(table.dim)];
                    let name = format!("emb_l.{index}.weight");
                    parts.push((
                        Body::Quantised(index, foreign),
                        Entry::new(name, Element::U8, &shape),
                    ));
                }
                Part::Weight(index) => parts.push((Body::Bytes(tables[index].rows), entry)),
                _ => {
                    let bytes = &self.tensor(&entry.name).bytes;
                    parts.push((Body::Bytes(bytes), entry));
                }
            }
        }
        let entries: Vec<Entry> = parts.iter().map(|(_, entry)| entry.clone()).collect();
        let metadata = BTreeMap::from([("format".into(), "pt".into())]);
        let mut writer = Writer::create(path, &entries, &metadata)?;
        for (body, _) in &parts {
            match body {
                Body::Quantised(index, foreign) => {
                    tables[*index].export(*foreign, &mut writer, done)?;
                }
                Body::Bytes(bytes) => {
                    for block in bytes.chunks(BLOCK_BYTES) {
                        writer.write(block)?;
                        done(block.len() as u64);
                    }
                }
            }
        }
        Ok(writer.finish()?)
    }
}

impl TableData<'_> {
    fn export(
        &self,
        foreign: Foreign,
        writer: &mut Writer,
        done: &dyn Fn(u64),
    ) -> Result<(), Error> {
        let (dim, stride) = (self.spec.dim, self.spec.row_bytes());
        let row_bytes = foreign.row_bytes(dim);
        let rows_at_once = (BLOCK_BYTES / row_bytes).clamp(1, self.spec.rows);
        let params = self.params.map_or(&[][..], |params| params);
        let mut block = vec![0; rows_at_once * row_bytes];
        let blocks = self.rows.chunks(rows_at_once * stride).zip(params.chunks(rows_at_once * 4));
        for (rows, params) in blocks {
            let block = &mut block[..rows.len() / stride * row_bytes];
            let ours = rows.par_chunks_exact(stride).zip(params.par_chunks_exact(4));
            block.par_chunks_exact_mut(row_bytes).zip(ours).with_min_len(64).for_each(
                |(out, (row, params))| {
                    let params: Params = bytemuck::pod_read_unaligned(params);
                    foreign.write(dim, row, params, out);
                },
            );
            writer.write(block)?;
            done(block.len() as u64);
        }
        Ok(())
    }
}

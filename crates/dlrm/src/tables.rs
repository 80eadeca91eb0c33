//! Embedding tables, laid out in memory as a plan says.

use std::sync::Arc;

use bytemuck::Zeroable as _;
use hither_data::{Backing, Buffer, Bytes, Pages};
use hither_kernels::bag::hot::{Hot, HotMap};
use hither_kernels::bag::quant::Params;
use hither_kernels::bag::{Source, Table};
use rayon::prelude::*;

use crate::Error;
use crate::model::{Model, TableData, TableSpec};
use crate::plan::{Packing, PageChoice, Plan, TablePlan};

/// Tables in memory. Cloned handles and replanned tables share the bytes.
pub struct Tables {
    tables: Vec<Loaded>,
}

/// One table, and what was done to it.
#[derive(Clone)]
struct Loaded {
    spec: TableSpec,
    plan: TablePlan,
    /// The rows that the plan asked to pack, hottest first.
    hot_list: Arc<[u32]>,
    /// The rows as the file has them.
    file: Bytes,
    /// The rows as lookups find them: the file's, or a copy.
    rows: Bytes,
    /// Scales and biases of quantised rows.
    params: Arc<Vec<Params>>,
    hot: Option<Arc<Copies>>,
    /// Whether the rows are those of another loaded table.
    is_shared: bool,
}

struct Copies {
    map: HotMap,
    rows: Bytes,
    stride: usize,
    params: Vec<Params>,
}

impl Tables {
    /// Lays out all tables. Those that stay mapped are not read; `done` is called with the bytes copied.
    pub fn load(model: &Model, plan: &Plan, done: &(dyn Fn(u64) + Sync)) -> Result<Self, Error> {
        let all: Vec<usize> = (0..plan.tables.len()).collect();
        Self::load_some(model, plan, &all, done)
    }

    /// Lays out some tables, as if the model had no others.
    pub fn load_some(
        model: &Model,
        plan: &Plan,
        chosen: &[usize],
        done: &(dyn Fn(u64) + Sync),
    ) -> Result<Self, Error> {
        let all: Vec<TableData> = model.tables().collect();
        let mut tables: Vec<Loaded> = Vec::with_capacity(chosen.len());
        for &t in chosen {
            let loaded = Loaded::mapped(&all[t]);
            let loaded = loaded.replanned(&plan.tables[t], &plan.hot[t], &tables)?;
            done(loaded.file.len() as u64);
            tables.push(loaded);
        }
        Ok(Self { tables })
    }

    /// The same tables as another plan says. What the plans agree on is shared, not copied again.
    pub fn replanned(&self, plan: &Plan, done: &(dyn Fn(u64) + Sync)) -> Result<Self, Error> {
        if plan.tables.len() != self.tables.len() {
            let (found, expected) = (plan.tables.len(), self.tables.len());
            return Err(Error::Batch { what: "tables of the plan", found, expected });
        }
        let mut tables = Vec::with_capacity(self.tables.len());
        for (old, (plan, hot)) in self.tables.iter().zip(plan.tables.iter().zip(&plan.hot)) {
            tables.push(old.replanned(plan, hot, &tables)?);
            done(old.file.len() as u64);
        }
        Ok(Self { tables })
    }

    /// The tables as the kernels take them.
    pub fn view(&self) -> Vec<Table<'_>> {
        self.tables.iter().map(Loaded::view).collect()
    }

    pub fn len(&self) -> usize {
        self.tables.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Elements of a sample's pooled rows.
    pub fn width(&self) -> usize {
        self.tables.iter().map(|t| t.spec.dim).sum()
    }

    /// Whether the tables themselves were copied, not only their hot rows.
    pub fn is_copied(&self) -> bool {
        self.tables.iter().any(|table| !table.rows.is_mapped())
    }

    /// Where the system really put what was copied; mapped files are not counted.
    pub fn backing(&self) -> Backing {
        let none = Backing { bytes: 0, resident_bytes: Some(0), huge_bytes: Some(0) };
        let copied = self.tables.iter().filter(|t| !t.is_shared).flat_map(|t| {
            let hot = t.hot.as_ref().map(|hot| &hot.rows);
            std::iter::once(&t.rows).chain(hot).filter(|bytes| !bytes.is_mapped())
        });
        copied.map(Bytes::backing).fold(none, |sum, one| Backing {
            bytes: sum.bytes + one.bytes,
            resident_bytes: sum.resident_bytes.zip(one.resident_bytes).map(|(a, b)| a + b),
            huge_bytes: sum.huge_bytes.zip(one.huge_bytes).map(|(a, b)| a + b),
        })
    }
}

impl Source for Tables {
    fn tables(&self) -> Vec<Table<'_>> {
        self.view()
    }
}

impl Loaded {
    /// The table as it lies in the model's file.
    fn mapped(table: &TableData) -> Self {
        Self {
            spec: table.spec.clone(),
            plan: TablePlan::mapped(&table.spec.name),
            hot_list: [].into(),
            file: table.rows.clone(),
            rows: table.rows.clone(),
            params: params_of(table),
            hot: None,
            is_shared: false,
        }
    }

    /// The same table as another plan says. The rows are those of an earlier table where it shares them.
    fn replanned(&self, plan: &TablePlan, hot: &[u32], earlier: &[Self]) -> Result<Self, Error> {
        let hot = &hot[..plan.hot_rows.min(hot.len())];
        let mut next = Self { plan: plan.clone(), hot_list: hot.into(), ..self.clone() };
        if let Some(owner) = earlier.iter().find(|owner| next.can_share(owner)) {
            (next.rows, next.params) = (owner.rows.clone(), Arc::clone(&owner.params));
            (next.is_shared, next.hot) = (true, None);
            return Ok(next);
        }
        if plan.pages != self.plan.pages || self.is_shared {
            next.is_shared = false;
            next.rows = match pages(plan.pages) {
                None => self.file.clone(),
                Some(pages) => {
                    let mut copy = Buffer::zeroed(self.rows.len(), pages)?;
                    copy_all(&self.rows, copy.as_mut_slice());
                    copy.into()
                }
            };
        }
        let is_same_list = plan.pages == self.plan.pages && *self.hot_list == *hot;
        next.hot = match next.packing() {
            Packing::Off => None,
            Packing::Lookup if is_same_list && self.hot.is_some() => self.hot.clone(),
            Packing::Lookup => Some(Arc::new(Copies::new(&next, hot)?)),
        };
        Ok(next)
    }

    /// What the plan asks for, as far as there are rows to pack.
    fn packing(&self) -> Packing {
        if self.hot_list.is_empty() { Packing::Off } else { self.plan.packing }
    }

    /// Whether this table reads the rows of `owner`, and the plans leave them where they are.
    fn can_share(&self, owner: &Self) -> bool {
        self.spec.shares.as_ref() == Some(&owner.spec.name)
            && self.plan.pages == owner.plan.pages
            && self.packing() == Packing::Off
    }

    fn stride(&self) -> usize {
        self.spec.row_bytes()
    }

    fn view(&self) -> Table<'_> {
        Table {
            dtype: self.spec.dtype,
            rows: self.spec.rows,
            dim: self.spec.dim,
            stride: self.stride(),
            data: &self.rows,
            params: &self.params,
            pooling: self.spec.pooling,
            padding: self.spec.padding,
            hot: self.hot.as_ref().map(|hot| Hot {
                map: &hot.map,
                data: &hot.rows,
                stride: hot.stride,
                params: &hot.params,
            }),
            prefetch: self.plan.prefetch,
        }
    }
}

impl Copies {
    fn new(table: &Loaded, hot: &[u32]) -> Result<Self, Error> {
        let map = HotMap::new(table.spec.rows, hot);
        // Whole lines, so that no copy touches one more than it must.
        let stride = table.stride().next_multiple_of(64);
        let pages = pages(table.plan.pages).unwrap_or(Pages::Huge);
        let mut rows = Buffer::zeroed(map.slots().len() * stride, pages)?;
        // From the rows that serve: the file may have changed since they were copied.
        let params = &table.params;
        gather(&table.rows, table.stride(), map.slots(), rows.as_mut_slice(), stride);
        let params = match params.is_empty() {
            true => Vec::new(),
            false => (map.slots().iter())
                .map(|id| params.get(*id as usize).copied().unwrap_or_default())
                .collect(),
        };
        Ok(Self { map, rows: rows.into(), stride, params })
    }
}

/// Scales and biases are copied in any case: four bytes per row, read at every lookup.
fn params_of(table: &TableData) -> Arc<Vec<Params>> {
    let Some(bytes) = table.params else { return Arc::default() };
    // Read at random places: on huge pages where there are many.
    let mut params = hither_kernels::memory::room(table.spec.rows);
    params.resize(table.spec.rows, Params::zeroed());
    bytemuck::cast_slice_mut(&mut params).copy_from_slice(bytes);
    Arc::new(params)
}

fn pages(choice: PageChoice) -> Option<Pages> {
    match choice {
        PageChoice::Mapped => None,
        PageChoice::Small => Some(Pages::Small),
        PageChoice::Huge => Some(Pages::Huge),
    }
}

/// What a thread copies at a time, and after which it lets others run: a thread that serves on the same core would
/// otherwise wait for the system's clock.
const COPY_BYTES: usize = 4 << 20;
const COPY_BYTES_AT_ONCE: usize = 256 << 10;

fn copy_all(from: &[u8], to: &mut [u8]) {
    let parts = to.par_chunks_mut(COPY_BYTES).zip(from.par_chunks(COPY_BYTES));
    parts.for_each(|(to, from)| {
        for (to, from) in to.chunks_mut(COPY_BYTES_AT_ONCE).zip(from.chunks(COPY_BYTES_AT_ONCE)) {
            to.copy_from_slice(from);
            std::thread::yield_now();
        }
    });
}

/// The rows of `order`, one behind the other; nothing where it has no row.
fn gather(from: &[u8], from_stride: usize, order: &[u32], to: &mut [u8], to_stride: usize) {
    if from_stride == 0 {
        return;
    }
    to.par_chunks_mut(to_stride).zip(order).for_each(|(to, id)| {
        let row = *id as usize * from_stride;
        if let Some(row) = from.get(row..row + from_stride) {
            to[..from_stride].copy_from_slice(row);
        }
    });
}

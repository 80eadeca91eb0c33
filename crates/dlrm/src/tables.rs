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
use crate::run::Seen;

/// Tables in memory. Cloned handles and replanned tables share the bytes.
pub struct Tables {
    tables: Vec<Loaded>,
    numbering: Option<u64>,
}

/// One table, and what was done to it.
#[derive(Clone)]
struct Loaded {
    spec: TableSpec,
    plan: TablePlan,
    /// The rows that the plan asked to pack, hottest first.
    hot_list: Arc<[u32]>,
    /// The rows as the file has them.
    file: Stored,
    /// The rows as lookups find them.
    now: Stored,
    hot: Option<Arc<Copies>>,
    /// The new number of each row, where rows changed places.
    renumbered: Option<Arc<[u32]>>,
    /// Whether the rows are those of another loaded table.
    is_shared: bool,
}

/// Rows, and the scales and biases of quantised ones.
#[derive(Clone)]
struct Stored {
    rows: Bytes,
    params: Arc<Vec<Params>>,
    /// The id that counts for nothing.
    padding: Option<i64>,
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
            let (table, plan, hot) = (&all[t], &plan.tables[t], &plan.hot[t]);
            let owner = tables.iter().find(|owner| owner.can_share(table, plan));
            let loaded = match owner {
                Some(owner) => owner.shared(table, plan),
                None => {
                    let padding = table.spec.padding;
                    let params = params_of(table);
                    let file = Stored { rows: table.rows.clone(), params, padding };
                    Loaded::new(table.spec, file, plan, hot)?
                }
            };
            done(table.rows.len() as u64);
            tables.push(loaded);
        }
        Ok(Self { tables, numbering: plan.numbering() })
    }

    /// The same tables as another plan says. What the plans agree on is shared, not copied again.
    pub fn replanned(&self, plan: &Plan, done: &(dyn Fn(u64) + Sync)) -> Result<Self, Error> {
        if plan.tables.len() != self.tables.len() {
            let (found, expected) = (plan.tables.len(), self.tables.len());
            return Err(Error::Batch { what: "tables of the plan", found, expected });
        }
        let mut tables = Vec::with_capacity(self.tables.len());
        for (old, (plan, hot)) in self.tables.iter().zip(plan.tables.iter().zip(&plan.hot)) {
            tables.push(old.replanned(plan, hot)?);
            done(old.file.rows.len() as u64);
        }
        Ok(Self { tables, numbering: plan.numbering() })
    }

    /// The tables as the kernels take them.
    pub fn view(&self) -> Vec<Table<'_>> {
        self.tables.iter().map(Loaded::view).collect()
    }

    /// The hash of the lists by which rows were put into another order, if they were: requests name
    /// it, so that ids of another order are refused.
    pub fn numbering(&self) -> Option<u64> {
        self.numbering
    }

    /// The share of lookups that went to packed rows; `None` where no lookup was in a table that has
    /// any.
    pub fn hot_share(&self, seen: &[Seen]) -> Option<f64> {
        let packed = |seen: &&Seen| {
            let table = self.tables.get(seen.table as usize);
            table.is_some_and(|table| table.hot.is_some() || table.renumbered.is_some())
        };
        let (mut all, mut hot) = (0u64, 0u64);
        for seen in seen.iter().filter(packed) {
            all += 1;
            hot += u64::from(self.tables[seen.table as usize].is_hot(seen.row));
        }
        (all > 0).then(|| hot as f64 / all as f64)
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
        self.tables.iter().any(|table| !table.now.rows.is_mapped())
    }

    /// Where the system really put what was copied; mapped files are not counted.
    pub fn backing(&self) -> Backing {
        let none = Backing { bytes: 0, resident_bytes: Some(0), huge_bytes: Some(0) };
        let copied = self.tables.iter().filter(|t| !t.is_shared).flat_map(|t| {
            let hot = t.hot.as_ref().map(|hot| &hot.rows);
            std::iter::once(&t.now.rows).chain(hot).filter(|bytes| !bytes.is_mapped())
        });
        copied.map(Bytes::backing).fold(none, |sum, one| Backing {
            bytes: sum.bytes + one.bytes,
            resident_bytes: sum.resident_bytes.zip(one.resident_bytes).map(|(a, b)| a + b),
            huge_bytes: sum.huge_bytes.zip(one.huge_bytes).map(|(a, b)| a + b),
        })
    }

    /// The numbers by which rows are now asked for, where `packing = "ids"` changed them: ids of a
    /// batch of `offsets`, in place.
    pub fn renumber(&self, ids: &mut [i64], offsets: &[i64], batch: usize) {
        for (t, table) in self.tables.iter().enumerate() {
            let Some(numbers) = &table.renumbered else { continue };
            let range = offsets[t * batch] as usize..offsets[(t + 1) * batch] as usize;
            for id in &mut ids[range] {
                *id = renumbered(*id, numbers);
            }
        }
    }
}

impl Source for Tables {
    fn tables(&self) -> Vec<Table<'_>> {
        self.view()
    }
}

impl Loaded {
    fn new(spec: &TableSpec, file: Stored, plan: &TablePlan, hot: &[u32]) -> Result<Self, Error> {
        let mut loaded = Self {
            spec: spec.clone(),
            plan: plan.clone(),
            hot_list: hot[..plan.hot_rows.min(hot.len())].into(),
            now: file.clone(),
            file,
            hot: None,
            renumbered: None,
            is_shared: false,
        };
        let hot = Arc::clone(&loaded.hot_list);
        match loaded.packing() {
            Packing::Off => {}
            Packing::Lookup => loaded.hot = Some(Arc::new(Copies::new(&loaded, &hot)?)),
            Packing::Ids => return loaded.reordered(&hot),
        }
        if let Some(pages) = pages(plan.pages) {
            let mut copy = Buffer::zeroed(loaded.file.rows.len(), pages)?;
            copy_all(&loaded.file.rows, copy.as_mut_slice());
            loaded.now.rows = copy.into();
        }
        Ok(loaded)
    }

    /// The same table as another plan says.
    fn replanned(&self, plan: &TablePlan, hot: &[u32]) -> Result<Self, Error> {
        let hot = &hot[..plan.hot_rows.min(hot.len())];
        let next = Self { plan: plan.clone(), hot_list: hot.into(), ..self.clone() };
        let (was, will) = (self.packing(), next.packing());
        let same_list = *self.hot_list == *hot;
        let ids = Packing::Ids;
        let same_order = (was == ids) == (will == ids) && (will != ids || same_list);
        if plan.pages != self.plan.pages || !same_order {
            return Self::new(&self.spec, self.file.clone(), plan, hot);
        }
        let hot = match will {
            Packing::Lookup if was == will && same_list => self.hot.clone(),
            Packing::Lookup => Some(Arc::new(Copies::new(&next, hot)?)),
            Packing::Off | Packing::Ids => None,
        };
        Ok(Self { hot, ..next })
    }

    /// What the plan asks for, as far as there are rows to pack.
    fn packing(&self) -> Packing {
        if self.hot_list.is_empty() { Packing::Off } else { self.plan.packing }
    }

    /// Whether a row, by the number by which it is asked for, is packed.
    fn is_hot(&self, row: u32) -> bool {
        match &self.hot {
            Some(hot) => hot.map.contains(row),
            None => self.renumbered.is_some() && (row as usize) < self.hot_list.len(),
        }
    }

    /// Whether `table` shares these rows and its plan leaves them where they are.
    fn can_share(&self, table: &TableData, plan: &TablePlan) -> bool {
        table.spec.shares.as_ref() == Some(&self.spec.name)
            && plan.pages == self.plan.pages
            && plan.packing == Packing::Off
            && self.hot.is_none()
            && self.renumbered.is_none()
    }

    /// Another table with the same rows, which are not copied again.
    fn shared(&self, table: &TableData, plan: &TablePlan) -> Self {
        let padding = table.spec.padding;
        Self {
            spec: table.spec.clone(),
            plan: plan.clone(),
            hot_list: [].into(),
            file: Stored { padding, ..self.file.clone() },
            now: Stored { padding, ..self.now.clone() },
            hot: None,
            renumbered: None,
            is_shared: true,
        }
    }

    /// The same table with its hot rows in front. Takes memory whatever the pages: the file's order
    /// is not this one.
    fn reordered(mut self, hot: &[u32]) -> Result<Self, Error> {
        let count = self.spec.rows;
        let mut numbers = vec![u32::MAX; count];
        let mut order = Vec::with_capacity(count);
        for id in hot.iter().copied().chain(0..count as u32) {
            // A list that was made elsewhere may name rows that the table does not have.
            let Some(number) = numbers.get_mut(id as usize) else { continue };
            if *number == u32::MAX {
                *number = order.len() as u32;
                order.push(id);
            }
        }
        let pages = pages(self.plan.pages).unwrap_or(Pages::Small);
        let mut copy = Buffer::zeroed(self.file.rows.len(), pages)?;
        gather(&self.file.rows, self.stride(), &order, copy.as_mut_slice(), self.stride());
        self.now.rows = copy.into();
        if !self.file.params.is_empty() {
            let mut params = hither_kernels::memory::room(count);
            params.extend(order.iter().map(|id| self.file.params[*id as usize]));
            self.now.params = Arc::new(params);
        }
        self.now.padding = self.file.padding.map(|padding| renumbered(padding, &numbers));
        self.renumbered = Some(numbers.into());
        Ok(self)
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
            data: &self.now.rows,
            params: &self.now.params,
            pooling: self.spec.pooling,
            padding: self.now.padding,
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
        let Stored { rows: from, params, .. } = &table.file;
        gather(from, table.stride(), map.slots(), rows.as_mut_slice(), stride);
        let params = match params.is_empty() {
            true => Vec::new(),
            false => (map.slots().iter())
                .map(|id| params.get(*id as usize).copied().unwrap_or_default())
                .collect(),
        };
        Ok(Self { map, rows: rows.into(), stride, params })
    }
}

/// The new number of a row; what is no row stays what it is.
fn renumbered(id: i64, numbers: &[u32]) -> i64 {
    let number = usize::try_from(id).ok().and_then(|id| numbers.get(id));
    number.map_or(id, |number| i64::from(*number))
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

/// What a thread copies at a time.
const COPY_BYTES: usize = 4 << 20;

fn copy_all(from: &[u8], to: &mut [u8]) {
    let parts = to.par_chunks_mut(COPY_BYTES).zip(from.par_chunks(COPY_BYTES));
    parts.for_each(|(to, from)| to.copy_from_slice(from));
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

//! Embedding tables, laid out in memory as a plan says.

use bytemuck::Zeroable as _;
use hither_data::{Backing, Buffer, Bytes, Pages};
use hither_kernels::bag::Table;
use hither_kernels::bag::hot::{Hot, HotMap};
use hither_kernels::bag::quant::Params;
use rayon::prelude::*;

use crate::Error;
use crate::model::{Model, TableData, TableSpec};
use crate::plan::{Packing, PageChoice, Plan, TablePlan};

pub struct Tables {
    tables: Vec<Loaded>,
}

/// One table, and what was done to it.
struct Loaded {
    spec: TableSpec,
    plan: TablePlan,
    rows: Bytes,
    params: Vec<Params>,
    hot: Option<Copies>,
    /// The new number of each row, where rows changed places.
    renumbered: Option<Vec<u32>>,
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
    /// Lays out all tables. Those that stay mapped are not read; `done` hears of bytes copied.
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
                None => Loaded::new(table, plan, hot)?,
            };
            done(table.rows.len() as u64);
            tables.push(loaded);
        }
        Ok(Self { tables })
    }

    /// As the kernels take them.
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

impl Loaded {
    fn new(table: &TableData, plan: &TablePlan, hot: &[u32]) -> Result<Self, Error> {
        let hot = &hot[..plan.hot_rows.min(hot.len())];
        let params = params_of(table);
        let mut loaded = Self {
            spec: table.spec.clone(),
            plan: plan.clone(),
            rows: table.rows.clone(),
            params,
            hot: None,
            renumbered: None,
            is_shared: false,
        };
        let packing = if hot.is_empty() { Packing::Off } else { plan.packing };
        match packing {
            Packing::Off => {}
            Packing::Lookup => loaded.hot = Some(Copies::new(&loaded, hot)?),
            Packing::Ids => return loaded.reordered(hot),
        }
        if let Some(pages) = pages(plan.pages) {
            let mut copy = Buffer::zeroed(loaded.rows.len(), pages)?;
            copy_all(&loaded.rows, copy.as_mut_slice());
            loaded.rows = copy.into();
        }
        Ok(loaded)
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
        Self {
            spec: table.spec.clone(),
            plan: plan.clone(),
            rows: self.rows.clone(),
            params: self.params.clone(),
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
        let mut copy = Buffer::zeroed(self.rows.len(), pages)?;
        gather(&self.rows, self.stride(), &order, copy.as_mut_slice(), self.stride());
        self.rows = copy.into();
        if !self.params.is_empty() {
            self.params = order.iter().map(|id| self.params[*id as usize]).collect();
        }
        if let Some(padding) = &mut self.spec.padding {
            *padding = renumbered(*padding, &numbers);
        }
        self.renumbered = Some(numbers);
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
        gather(&table.rows, table.stride(), map.slots(), rows.as_mut_slice(), stride);
        let params = match table.params.is_empty() {
            true => Vec::new(),
            false => (map.slots().iter())
                .map(|id| table.params.get(*id as usize).copied().unwrap_or_default())
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

/// Scales and biases are copied in any case: four bytes a row, read at every lookup.
fn params_of(table: &TableData) -> Vec<Params> {
    let Some(bytes) = table.params else { return Vec::new() };
    // Read at random places: on huge pages where there are many.
    let mut params = hither_kernels::memory::room(table.spec.rows);
    params.resize(table.spec.rows, Params::zeroed());
    bytemuck::cast_slice_mut(&mut params).copy_from_slice(bytes);
    params
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

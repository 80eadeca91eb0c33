//! What an engine has on the host, whatever computes: the tables as they lie now, and what a request must
//! be like.

use std::sync::{Arc, PoisonError, RwLock};

use hither_kernels::bag::{self, Resident};
use hither_kernels::detect::Isa;

use super::{Options, Request, Sparse};
use crate::Error;
use crate::model::Model;
use crate::plan::Plan;
use crate::tables::Tables;

/// The tables of a model, and the sizes of its requests.
pub struct Host {
    inputs: usize,
    outputs: usize,
    options: Options,
    layout: RwLock<Arc<Layout>>,
}

/// What a new plan replaces.
pub(super) struct Layout {
    tables: Arc<Tables>,
    pub resident: Resident,
    /// Threads that may help the one that has a batch.
    pub helpers_max: usize,
}

impl Host {
    pub(super) fn load(
        model: &Model,
        plan: &Plan,
        options: Options,
        done: &(dyn Fn(u64) + Sync),
    ) -> Result<Self, Error> {
        let layout = Layout::new(Tables::load(model, plan, done)?, plan, &options)?;
        Ok(Self {
            inputs: model.spec.dense_features(),
            outputs: model.spec.top.last().copied().unwrap_or(0),
            options,
            layout: RwLock::new(Arc::new(layout)),
        })
    }

    /// Scores per sample.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// The tables as they lie at this moment.
    pub fn tables(&self) -> Arc<Tables> {
        Arc::clone(&self.layout().tables)
    }

    pub(super) fn isa(&self) -> Isa {
        self.options.cpu.isa
    }

    pub(super) fn layout(&self) -> Arc<Layout> {
        Arc::clone(&self.layout.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn replan(&self, plan: &Plan, done: &(dyn Fn(u64) + Sync)) -> Result<(), Error> {
        let tables = self.tables().replanned(plan, done)?;
        let layout = Arc::new(Layout::new(tables, plan, &self.options)?);
        *self.layout.write().unwrap_or_else(PoisonError::into_inner) = layout;
        Ok(())
    }

    /// Whether a request can be computed: its sizes, its offsets, and every id. For devices that cannot say
    /// so while they compute.
    pub fn check(&self, request: &Request) -> Result<(), Error> {
        let layout = self.layout();
        self.check_sizes(request, &layout)?;
        let tables = layout.resident.get();
        for table in 0..tables.tables().len() {
            tables.check(table, &request.sparse.table(table))?;
        }
        Ok(())
    }

    /// Whether a request's arrays have the right sizes. Reads no array: offsets and ids are checked where
    /// rows are looked up.
    pub(super) fn check_sizes(&self, request: &Request, layout: &Layout) -> Result<(), Error> {
        let samples = request.samples();
        check("dense features", request.dense.len(), samples.saturating_mul(self.inputs))?;
        let tables = layout.resident.get().tables();
        match request.sparse {
            Sparse::Joined(bags) => {
                bags.check(tables.len())?;
                let is_max = |table: &bag::Table| table.pooling == bag::Pooling::Max;
                match tables.iter().position(is_max).filter(|_| bags.weights.is_some()) {
                    Some(table) => Err(bag::Error::WeightedMax { table }.into()),
                    None => Ok(()),
                }
            }
            Sparse::PerTable { tables: lists, .. } => {
                check("tables with ids", lists.len(), tables.len())?;
                for (t, (bags, table)) in lists.iter().zip(tables).enumerate() {
                    check("offsets of a table", bags.offsets.len(), samples.saturating_add(1))?;
                    bags.check(t, table, &(0..samples))?;
                }
                Ok(())
            }
        }
    }
}

impl Layout {
    fn new(tables: Tables, plan: &Plan, options: &Options) -> Result<Self, Error> {
        let tables = Arc::new(tables);
        let out_of_range = options.out_of_range.clone();
        let resident = Resident::new(Arc::clone(&tables), out_of_range, options.cpu.isa)?;
        let helpers_max = plan.threads.checked_sub(1).unwrap_or(usize::MAX);
        Ok(Self { tables, resident, helpers_max })
    }
}

fn check(what: &'static str, found: usize, expected: usize) -> Result<(), Error> {
    if found == expected { Ok(()) } else { Err(Error::Batch { what, found, expected }) }
}

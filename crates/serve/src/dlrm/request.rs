//! Checked requests as the engine reads them: nothing is copied.

use hither_dlrm::run::{Request, Sparse};
use hither_kernels::bag::{Bags, TableBags};

use crate::inputs::{Features, Lists};

impl Features {
    /// Lists that [`Features::request`] needs room for.
    pub fn lists(&self) -> Vec<TableBags<'_>> {
        let lists = match &self.sparse {
            Lists::Joined(_) => &[],
            Lists::PerTable(lists) => &lists[..],
        };
        let bags = lists.iter().map(|list| TableBags {
            ids: list.ids(),
            offsets: &list.offsets,
            weights: list.weights.as_deref(),
        });
        bags.collect()
    }

    /// The engine's view; `lists` are those of [`Features::lists`].
    pub fn request<'a>(&'a self, lists: &'a [TableBags<'a>]) -> Request<'a> {
        let sparse = match &self.sparse {
            Lists::Joined(list) => Sparse::Joined(Bags {
                batch: self.samples,
                ids: list.ids(),
                offsets: &list.offsets,
                weights: list.weights.as_deref(),
            }),
            Lists::PerTable(_) => Sparse::PerTable { samples: self.samples, tables: lists },
        };
        Request { dense: &self.dense, sparse }
    }
}

//! Requests to row numbers, in the form that the device's kernels take.

use hither_kernels::bag::{Ids, Pooling, Table, TableBags};

use super::rows::DeviceRows;
use hither_dlrm::run::Request;

/// A batch of requests, joined.
#[derive(Default)]
pub(super) struct Resolved {
    pub dense: Vec<f32>,
    /// Row numbers of all bags, table after table.
    pub rows: Vec<u32>,
    /// tables · samples + 1 places in `rows`.
    pub starts: Vec<u32>,
    /// One per row number where some request has weights; else none.
    pub weights: Vec<f32>,
    /// One per bag.
    pub scales: Vec<f32>,
}

impl Resolved {
    /// Joins the good requests; bags of bad ones are empty. Returns how many ids were clamped: those
    /// that a check let pass although no row has them.
    pub fn fill(
        &mut self,
        requests: &[Request<'_>],
        is_good: impl Fn(usize) -> bool,
        tables: &[Table<'_>],
        rows: &DeviceRows,
    ) -> u64 {
        self.clear();
        for (index, request) in requests.iter().enumerate() {
            match is_good(index) {
                true => self.dense.extend_from_slice(request.dense),
                false => {
                    // The right number of features, whatever the request has.
                    let good = requests
                        .iter()
                        .enumerate()
                        .find(|(index, r)| is_good(*index) && r.samples() > 0);
                    let features = good.map_or(0, |(_, r)| r.dense.len() / r.samples());
                    self.dense.resize(self.dense.len() + request.samples() * features, 0.0);
                }
            }
        }
        let good = |(index, _): &(usize, &Request<'_>)| is_good(*index);
        let is_weighted = (requests.iter().enumerate().filter(good))
            .any(|(_, r)| (0..tables.len()).any(|table| r.sparse.table(table).weights.is_some()));
        let mut clamped = 0;
        self.starts.push(0);
        for (t, table) in tables.iter().enumerate() {
            for (index, request) in requests.iter().enumerate() {
                if !is_good(index) {
                    let bags = self.starts.len() + request.samples();
                    self.starts.resize(bags, self.rows.len() as u32);
                    self.scales.resize(bags - 1, 1.0);
                    continue;
                }
                let number = |row| rows.number(t, row);
                clamped += self.add(
                    table,
                    &request.sparse.table(t),
                    request.samples(),
                    is_weighted,
                    number,
                );
            }
        }
        clamped
    }

    fn clear(&mut self) {
        self.dense.clear();
        self.rows.clear();
        self.starts.clear();
        self.weights.clear();
        self.scales.clear();
    }

    /// The bags of one request and table. As on the CPU: padding counts for nothing, a pruned row adds
    /// nothing but counts in a mean, and an id that no row has becomes the nearest row.
    fn add(
        &mut self,
        table: &Table<'_>,
        bags: &TableBags<'_>,
        samples: usize,
        is_weighted: bool,
        number: impl Fn(usize) -> u32,
    ) -> u64 {
        let id = |position: usize| match bags.ids {
            Ids::U32(ids) if ids[position] == u32::MAX => -1,
            Ids::U32(ids) => i64::from(ids[position]),
            Ids::I64(ids) => ids[position],
        };
        let mut clamped = 0;
        for sample in 0..samples {
            let mut counted = 0;
            for position in bags.offsets[sample] as usize..bags.offsets[sample + 1] as usize {
                let id = id(position);
                if table.padding == Some(id) {
                    continue;
                }
                counted += 1;
                if id == -1 || table.rows == 0 {
                    continue;
                }
                let row = id.clamp(0, table.rows as i64 - 1);
                clamped += u64::from(row != id);
                self.rows.push(number(row as usize));
                if is_weighted {
                    self.weights.push(bags.weights.map_or(1.0, |weights| weights[position]));
                }
            }
            let is_mean = table.pooling == Pooling::Mean && counted > 0;
            self.scales.push(if is_mean { 1.0 / counted as f32 } else { 1.0 });
            self.starts.push(self.rows.len() as u32);
        }
        clamped
    }
}

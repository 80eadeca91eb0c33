//! How a launch meets a GPU's caches: an L1 for each SM and one L2, with a part for pinned rows.
//!
//! A [`Launch`] is what each group of threads asks of global memory, in order. [`Launch::from_ids`]
//! derives it from ids; the bench program records it from emulated machine code. Blocks go to SMs as
//! these have room, and all resident groups issue one request each in turn. Lines are replaced least
//! recently used first.

use hither_dlrm::lookups::Lookups;
use hither_dlrm::model::Spec;
use hither_dlrm::plan::gpu::Ahead;
use hither_kernels::bag::{Bags, Ids};
use serde::Serialize;

use crate::bags::{Build, THREADS, bags_per_group, device_dtype, row_stride};
use crate::gpu::Gpu;

/// Bytes of a line, in both caches.
pub const LINE: usize = 128;
const WAYS: usize = 16;

/// What becomes of a lookup's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Traffic {
    /// Bytes of a row, on average over lookups.
    pub row_bytes: f64,
    /// The share of rows' lines that L2 was not asked for.
    pub l1_hits: f64,
    /// Of the lines that L2 was asked for, the share that DRAM was not asked for.
    pub l2_hits: f64,
    /// Bytes that DRAM moves per lookup: rows, ids and sums.
    pub dram_bytes: f64,
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Row,
    /// A row that is pinned where the variant pins.
    HotRow,
    /// Ids, bounds of bags, sums.
    Other,
}

/// How a request passes the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Load,
    PrefetchL1,
    /// Fills L2 and passes L1 by.
    PrefetchL2,
    /// Passes L1 by; L2 keeps the line and writes it back later.
    Store,
}

/// One request of a group of threads: adjacent lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The address of the first line divided by [`LINE`].
    pub line: u64,
    pub lines: u16,
    pub content: Content,
    pub way: Way,
}

/// What a variant leaves of the caches, and how much of it runs at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Setting {
    pub l1_bytes: usize,
    /// Blocks that an SM runs at once.
    pub blocks: usize,
    /// Bytes of L2 that hold the hot rows; `None` where nothing is pinned.
    pub pinned_bytes: Option<usize>,
}

/// The requests of one or more batches.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// The requests of each group of threads, block after block.
    pub groups: Vec<Vec<Request>>,
    pub groups_per_block: usize,
    pub lookups: usize,
    /// Bytes of the rows that were looked up, all together.
    pub row_bytes: f64,
}

impl Launch {
    /// The requests that a build makes for as many batches as have `enough` lookups: for each row its
    /// number and then the row, for each bag one store.
    pub fn from_ids(
        gpu: &Gpu,
        spec: &Spec,
        lookups: &Lookups,
        hot: &[Vec<u32>],
        build: &Build,
        enough: usize,
    ) -> Self {
        let widest = spec.tables.iter().map(|table| table.dim).max().unwrap_or(1);
        let build = Build { lanes: Build::lanes_for(build.variant, widest), ..*build };
        let places = Places::new(spec, hot, &build);
        let groups_per_block = (THREADS / build.lanes) as usize;
        let mut launch = Self { groups_per_block, ..Self::default() };
        for k in 0..lookups.len() {
            let bags = lookups.bags(k);
            let run = bags_per_group(&build, gpu.sms, bags.batch, places.slices.len()) as usize;
            for slice in &places.slices {
                for first in (0..bags.batch).step_by(run) {
                    let bags_of_group = slice.table * bags.batch + first
                        ..slice.table * bags.batch + (first + run).min(bags.batch);
                    let requests = places.group(slice, &bags, bags_of_group, &build);
                    launch.groups.push(requests);
                }
                // Each slice begins with a block of its own.
                let whole = launch.groups.len().next_multiple_of(groups_per_block);
                launch.groups.resize(whole, Vec::new());
            }
            launch.lookups += bags.offsets[places.strides.len() * bags.batch] as usize;
            for (t, stride) in places.strides.iter().enumerate() {
                let ids = bags.offsets[(t + 1) * bags.batch] - bags.offsets[t * bags.batch];
                launch.row_bytes += ids as f64 * *stride as f64;
            }
            if launch.lookups >= enough {
                break;
            }
        }
        launch
    }

    /// What becomes of all requests on a GPU.
    pub fn traffic(&self, gpu: &Gpu, setting: &Setting) -> Traffic {
        let mut caches = Caches::new(gpu, setting);
        let mut waiting = self.groups.chunks(self.groups_per_block.max(1));
        let mut resident: Vec<Resident> = (0..gpu.sms * setting.blocks.max(1))
            .map_while(|place| Some(Resident::new(place % gpu.sms, waiting.next()?)))
            .collect();
        while !resident.is_empty() {
            resident.retain_mut(|block| {
                let requests = block.groups.iter().filter_map(|group| group.get(block.step));
                requests.for_each(|request| caches.serve(block.sm, request));
                block.step += 1;
                if block.step < block.steps {
                    return true;
                }
                let next = waiting.next().map(|groups| Resident::new(block.sm, groups));
                next.map(|next| *block = next).is_some()
            });
        }
        let row_bytes = self.row_bytes / self.lookups.max(1) as f64;
        caches.traffic(row_bytes, self.lookups)
    }
}

/// A block on an SM.
struct Resident<'a> {
    sm: usize,
    groups: &'a [Vec<Request>],
    step: usize,
    /// Requests of the group that has most.
    steps: usize,
}

impl<'a> Resident<'a> {
    fn new(sm: usize, groups: &'a [Vec<Request>]) -> Self {
        let steps = groups.iter().map(Vec::len).max().unwrap_or(0);
        Self { sm, groups, step: 0, steps }
    }
}

/// Where rows, ids and sums lie: tables one after the other, then ids, then sums.
struct Places {
    slices: Vec<Slice>,
    /// Bytes of a row, by table.
    strides: Vec<usize>,
    is_hot: Vec<Vec<bool>>,
    ids: usize,
    sums: usize,
    sum_bytes: usize,
}

/// The elements of a table's rows that one group of threads reads.
struct Slice {
    table: usize,
    /// Address of the slice's part of row 0.
    address: usize,
    bytes: usize,
    /// Its place in a row of sums, in bytes.
    column: usize,
    sum_bytes: usize,
}

impl Places {
    fn new(spec: &Spec, hot: &[Vec<u32>], build: &Build) -> Self {
        let (mut slices, mut strides, mut end, mut column) = (Vec::new(), Vec::new(), 0, 0);
        for (t, table) in spec.tables.iter().enumerate() {
            let stride = row_stride(device_dtype(table.dtype), table.dim);
            let element = stride / table.dim.next_multiple_of(4);
            for first in (0..table.dim).step_by(build.slice_elements()) {
                let width = build.slice_elements().min(table.dim - first);
                let (address, bytes) = (end + first * element, width * element);
                let column = (column + first) * 4;
                slices.push(Slice { table: t, address, bytes, column, sum_bytes: width * 4 });
            }
            strides.push(stride);
            column += table.dim;
            end = (end + table.rows * stride).next_multiple_of(LINE);
        }
        let is_hot = (spec.tables.iter().zip(hot))
            .map(|(table, hot)| {
                let mut rows = vec![false; table.rows];
                hot.iter().for_each(|row| rows[*row as usize] = true);
                rows
            })
            .collect();
        // Far enough apart for any batch.
        Self { slices, strides, is_hot, ids: end, sums: end + (1 << 40), sum_bytes: column * 4 }
    }

    /// The requests of one group of threads for a run of bags.
    fn group(
        &self,
        slice: &Slice,
        bags: &Bags<'_>,
        run: std::ops::Range<usize>,
        build: &Build,
    ) -> Vec<Request> {
        let end = bags.offsets[run.end] as usize;
        let ahead = match build.variant.ahead {
            Ahead::L1 => Some(Way::PrefetchL1),
            Ahead::L2 => Some(Way::PrefetchL2),
            // Rows that are fetched elsewhere are asked for once, in the same order.
            _ => None,
        };
        let row = |position: usize, way| {
            let row = self.row(slice, bags, position, way);
            let number = request(self.ids + position * 4, 4, Content::Other, Way::Load);
            row.map(|row| [number, row])
        };
        let mut requests = Vec::new();
        let mut fetched = bags.offsets[run.start] as usize;
        for bag in run {
            for position in bags.offsets[bag] as usize..bags.offsets[bag + 1] as usize {
                if let Some(way) = ahead {
                    let until = (position + 1 + build.distance as usize).min(end);
                    let next = fetched.max(position + 1)..until;
                    requests.extend(next.filter_map(|next| row(next, way)).flatten());
                    fetched = until;
                    requests.extend(self.row(slice, bags, position, Way::Load));
                } else {
                    requests.extend(row(position, Way::Load).into_iter().flatten());
                }
            }
            requests.push(self.sum(slice, bag));
        }
        requests
    }

    /// The request for one row; `None` where the table has no such row.
    fn row(&self, slice: &Slice, bags: &Bags<'_>, position: usize, way: Way) -> Option<Request> {
        let id = match bags.ids {
            Ids::U32(ids) => u64::from(ids[position]),
            Ids::I64(ids) => ids[position] as u64,
        };
        let is_hot = *self.is_hot[slice.table].get(usize::try_from(id).ok()?)?;
        let content = if is_hot { Content::HotRow } else { Content::Row };
        let address = slice.address + id as usize * self.strides[slice.table];
        Some(request(address, slice.bytes, content, way))
    }

    fn sum(&self, slice: &Slice, bag: usize) -> Request {
        let address = self.sums + bag * self.sum_bytes + slice.column;
        request(address, slice.sum_bytes, Content::Other, Way::Store)
    }
}

fn request(address: usize, bytes: usize, content: Content, way: Way) -> Request {
    let lines = (address + bytes).div_ceil(LINE) - address / LINE;
    Request { line: (address / LINE) as u64, lines: lines as u16, content, way }
}

/// The caches of a GPU, and what they were asked for.
struct Caches {
    l1: Vec<Lru>,
    l2: Lru,
    is_pinned: bool,
    /// Lines of rows that were loaded, and that L2 and DRAM were asked for.
    loaded: u64,
    from_l2: u64,
    from_dram: u64,
    /// Lines of other things that DRAM moved.
    others: u64,
}

impl Caches {
    fn new(gpu: &Gpu, setting: &Setting) -> Self {
        let l2_bytes = gpu.l2_bytes.saturating_sub(setting.pinned_bytes.unwrap_or(0));
        Self {
            l1: (0..gpu.sms).map(|_| Lru::new(setting.l1_bytes)).collect(),
            l2: Lru::new(l2_bytes),
            is_pinned: setting.pinned_bytes.is_some(),
            loaded: 0,
            from_l2: 0,
            from_dram: 0,
            others: 0,
        }
    }

    fn serve(&mut self, sm: usize, request: &Request) {
        let Request { content, way, .. } = *request;
        let is_row = content != Content::Other;
        let enters_l1 = matches!(way, Way::Load | Way::PrefetchL1);
        let stays_in_l2 = self.is_pinned && content == Content::HotRow;
        for line in request.line..request.line + u64::from(request.lines) {
            self.loaded += u64::from(is_row && way == Way::Load);
            if enters_l1 && self.l1[sm].touch(line) {
                continue;
            }
            self.from_l2 += u64::from(is_row && enters_l1);
            if !stays_in_l2 && !self.l2.touch(line) {
                self.from_dram += u64::from(is_row);
                self.others += u64::from(!is_row);
            }
        }
    }

    fn traffic(&self, row_bytes: f64, lookups: usize) -> Traffic {
        // A line that was fetched ahead and lost before its use is asked for twice.
        let spared = |asked: u64, of: u64| (1.0 - asked as f64 / of.max(1) as f64).max(0.0);
        let (l1_hits, l2_hits) =
            (spared(self.from_l2, self.loaded), spared(self.from_dram, self.from_l2));
        let others = (self.others * LINE as u64) as f64 / lookups.max(1) as f64;
        let rows = row_bytes * self.from_dram as f64 / self.loaded.max(1) as f64;
        Traffic { row_bytes, l1_hits, l2_hits, dram_bytes: rows + others }
    }
}

/// A cache of lines, set-associative, least recently used first.
struct Lru {
    /// `WAYS` lines per set, the latest first; 0 for none.
    lines: Vec<u64>,
    sets: u64,
}

impl Lru {
    fn new(bytes: usize) -> Self {
        let sets = (bytes / LINE / WAYS).max(1);
        Self { lines: vec![0; sets * WAYS], sets: sets as u64 }
    }

    /// Reads a line. Returns whether it was there.
    fn touch(&mut self, line: u64) -> bool {
        let tag = line + 1;
        // Spread, as the hardware spreads addresses over slices.
        let set = (tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % self.sets;
        let ways = &mut self.lines[set as usize * WAYS..][..WAYS];
        let found = ways.iter().position(|way| *way == tag);
        ways[..=found.unwrap_or(WAYS - 1)].rotate_right(1);
        ways[0] = tag;
        found.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_line_leaves() {
        let mut cache = Lru::new(LINE * WAYS);
        assert!((0..WAYS as u64).all(|line| !cache.touch(line)));
        assert!(cache.touch(0), "still there");
        assert!(!cache.touch(99), "new, and line 1 leaves");
        assert!(cache.touch(0) && !cache.touch(1));
    }

    const SETTING: Setting = Setting { l1_bytes: 192 << 10, blocks: 2, pinned_bytes: None };

    /// One group of threads that asks for these lines of rows, a line per row.
    fn launch(requests: &[(u64, Content, Way)]) -> Launch {
        let request =
            |&(line, content, way): &(u64, Content, Way)| Request { line, lines: 1, content, way };
        let lookups = requests.iter().filter(|(_, _, way)| *way == Way::Load).count();
        Launch {
            groups: vec![requests.iter().map(request).collect()],
            groups_per_block: 8,
            lookups,
            row_bytes: (lookups * LINE) as f64,
        }
    }

    #[test]
    fn a_prefetched_line_is_fetched_once() {
        let gpu: Gpu = "a100".parse().expect("a GPU");
        let rows = |way| launch(&[(1, Content::Row, way), (1, Content::Row, Way::Load)]);
        let l1 = rows(Way::PrefetchL1).traffic(&gpu, &SETTING);
        assert_eq!((l1.l1_hits, l1.l2_hits, l1.dram_bytes), (0.0, 0.0, 128.0), "one of one line");
        let l2 = rows(Way::PrefetchL2).traffic(&gpu, &SETTING);
        assert_eq!(l2.dram_bytes, 128.0, "the load finds in L2 what was fetched");
        let twice = launch(&[(1, Content::Row, Way::Load); 2]).traffic(&gpu, &SETTING);
        assert_eq!((twice.l1_hits, twice.dram_bytes), (0.5, 64.0));
    }

    #[test]
    fn pinned_rows_come_from_l2_and_sums_count_as_traffic() {
        let gpu: Gpu = "a100".parse().expect("a GPU");
        let launch = launch(&[(1, Content::HotRow, Way::Load), (9, Content::Other, Way::Store)]);
        let pinned = Setting { pinned_bytes: Some(128), ..SETTING };
        assert_eq!(launch.traffic(&gpu, &SETTING).dram_bytes, 256.0);
        let traffic = launch.traffic(&gpu, &pinned);
        assert_eq!((traffic.l2_hits, traffic.dram_bytes), (1.0, 128.0));
    }

    #[test]
    fn blocks_share_the_l1_of_their_sm_alone() {
        let gpu: Gpu = "a100".parse().expect("a GPU");
        let row = Request { line: 7, lines: 1, content: Content::Row, way: Way::Load };
        let blocks = |count: usize| Launch {
            groups: vec![vec![row]; count],
            groups_per_block: 1,
            lookups: count,
            row_bytes: (count * LINE) as f64,
        };
        assert_eq!(blocks(gpu.sms).traffic(&gpu, &SETTING).l1_hits, 0.0, "one on each SM");
        assert_eq!(blocks(4 * gpu.sms).traffic(&gpu, &SETTING).l1_hits, 0.75);
    }
}

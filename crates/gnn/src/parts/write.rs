//! Writes a dataset with its nodes numbered by part (`stored.rs` has the layout). Memory: two numbers per
//! node; everything else goes from one file to the other.

use std::collections::BTreeMap;
use std::path::Path;

use bytemuck::Pod;
use hither_data::Dtype;
use hither_data::output::check_space;
use hither_data::safetensors::{Entry, Writer};

use super::stored::{FORMAT, ID, PARTS, VERSION, WHOLE};
use crate::load::{FeatureShape, contents};
use crate::partition::Partition;
use crate::train::Fnv;
use crate::{Dataset, Error, Features, Labels};

/// Bytes that are written at once.
const BLOCK_BYTES: usize = 1 << 20;

/// A dataset that is to be written to a folder.
pub struct PartWriter<'a> {
    data: &'a Dataset,
    order: PartOrder,
    /// How the graph was cut.
    method: &'a str,
}

/// Nodes by part, and inside a part by their original numbers.
struct PartOrder {
    /// The old number of each new node.
    old: Vec<u32>,
    /// The new number of each old node.
    new: Vec<u32>,
    /// The first new node of each part, and the end of the last.
    starts: Vec<usize>,
    /// Neighbours inside of parts, all together.
    neighbours: usize,
}

impl<'a> PartWriter<'a> {
    /// Fails if the dataset is not complete.
    pub fn new(data: &'a Dataset, partition: &Partition, method: &'a str) -> Result<Self, Error> {
        data.check()?;
        if data.graph.weights().is_some() {
            let problem = "graphs whose edges have weights are not written by part; train on the graph \
                           itself, which is cut in memory";
            return Err(Error::Dataset { name: data.name.clone(), problem: problem.into() });
        }
        Ok(Self { data, order: PartOrder::new(data, partition), method })
    }

    /// Bytes of both files.
    pub fn bytes(&self) -> u64 {
        let (whole, parts) = (self.whole_contents().0, self.parts_contents().0);
        let bytes = |entry: &Entry| entry.bytes().unwrap_or(usize::MAX) as u64;
        whole.iter().chain(&parts).map(bytes).fold(0, u64::saturating_add)
    }

    /// Writes both files, after a check that there is room for them. Each appears when it is whole;
    /// files of different writes are told apart on opening. `told` is called with the bytes written.
    pub fn write(&self, dir: &Path, told: &dyn Fn(u64)) -> Result<(), Error> {
        check_space(dir, self.bytes())?;
        self.write_whole(&dir.join(WHOLE), told)?;
        self.write_parts(&dir.join(PARTS), told)
    }

    /// Tells one partition of one dataset from all others.
    fn id(&self) -> String {
        let sizes = [self.data.graph.nodes() as u64, self.data.graph.targets().len() as u64];
        let starts = self.order.starts.iter().map(|start| *start as u64);
        let original = |old: &u32| u64::from(self.data.original_number(*old));
        let numbers = sizes.into_iter().chain(starts).chain(self.order.old.iter().map(original));
        format!("{:016x}", Fnv::of(numbers.chain([self.data.hash()])).0)
    }

    fn whole_contents(&self) -> (Vec<Entry>, BTreeMap<String, String>) {
        contents(self.data, FeatureShape::of_features(&self.data.features), true)
    }

    fn parts_contents(&self) -> (Vec<Entry>, BTreeMap<String, String>) {
        let PartOrder { old, starts, neighbours, .. } = &self.order;
        let ends = old.len() + starts.len() - 1;
        let mut entries = vec![
            Entry::new("node_starts", Dtype::U64, &[starts.len()]),
            Entry::new("offsets", Dtype::U64, &[ends]),
            Entry::new("neighbours", Dtype::U32, &[*neighbours]),
        ];
        if let Features::Sparse { .. } = self.data.features {
            entries.push(Entry::new("feature_offsets", Dtype::U64, &[ends]));
        }
        let metadata = [("format", FORMAT), ("version", VERSION), ("method", self.method)];
        (entries, metadata.map(|(key, value)| (key.to_owned(), value.to_owned())).into())
    }

    fn create(
        &self,
        path: &Path,
        (entries, mut metadata): (Vec<Entry>, BTreeMap<String, String>),
        told: &'a dyn Fn(u64),
    ) -> Result<Stream<'a>, Error> {
        metadata.insert(ID.to_owned(), self.id());
        let out = Writer::create(path, &entries, &metadata)?;
        Ok(Stream { out, block: Vec::with_capacity(2 * BLOCK_BYTES), told })
    }

    fn write_whole(&self, path: &Path, told: &dyn Fn(u64)) -> Result<(), Error> {
        let Self { data, order, .. } = self;
        let mut out = self.create(path, self.whole_contents(), told)?;
        let rows = || order.old.iter().map(|old| *old as usize);
        out.put_ends(rows().map(|old| data.graph.degree(old as u32)))?;
        for old in &order.old {
            for neighbour in data.graph.neighbours(*old) {
                out.put(&[order.new[*neighbour as usize]])?;
            }
        }
        match &data.labels {
            Labels::Classes { of, .. } => rows().try_for_each(|old| out.put(&[of[old]]))?,
            Labels::Tasks { of, count } => {
                rows().try_for_each(|old| out.put(&of[old * count..(old + 1) * count]))?;
            }
        }
        for set in [&data.split.train, &data.split.valid, &data.split.test] {
            set.iter().try_for_each(|old| out.put(&[order.new[*old as usize]]))?;
        }
        if let Some(names) = &data.node_names {
            rows().try_for_each(|old| out.put(names.bytes(old)))?;
            let mut end = 0;
            for old in rows() {
                end += names.bytes(old).len() as u64;
                out.put(&[end])?;
            }
        }
        if let Some(names) = &data.class_names {
            out.put(names.text())?;
            out.put(names.ends())?;
        }
        order.old.iter().try_for_each(|old| out.put(&[data.original_number(*old)]))?;
        match &data.features {
            Features::Dense { values, dim } => {
                rows().try_for_each(|old| out.put(&values[old * dim..(old + 1) * dim]))?;
            }
            Features::Sparse { offsets, indices, values, .. } => {
                let row = |old: usize| offsets[old] as usize..offsets[old + 1] as usize;
                out.put_ends(rows().map(|old| row(old).len()))?;
                rows().try_for_each(|old| out.put(&indices[row(old)]))?;
                if let Some(values) = values {
                    rows().try_for_each(|old| out.put(&values[row(old)]))?;
                }
            }
        }
        out.finish()
    }

    fn write_parts(&self, path: &Path, told: &dyn Fn(u64)) -> Result<(), Error> {
        let Self { data, order, .. } = self;
        let mut out = self.create(path, self.parts_contents(), told)?;
        order.starts.iter().try_for_each(|start| out.put(&[*start as u64]))?;
        for part in 0..order.parts() {
            out.put_ends(
                order.nodes(part).iter().map(|old| order.inside(data, part, *old).count()),
            )?;
        }
        for part in 0..order.parts() {
            for old in order.nodes(part) {
                order.inside(data, part, *old).try_for_each(|number| out.put(&[number]))?;
            }
        }
        if let Features::Sparse { offsets, .. } = &data.features {
            let entries = |old: u32| offsets[old as usize + 1] - offsets[old as usize];
            for part in 0..order.parts() {
                out.put_ends(order.nodes(part).iter().map(|old| entries(*old) as usize))?;
            }
        }
        out.finish()
    }
}

impl PartOrder {
    fn new(data: &Dataset, partition: &Partition) -> Self {
        let (mut old, mut starts) = (Vec::with_capacity(partition.of.len()), vec![0]);
        for mut nodes in partition.nodes_of() {
            nodes.sort_by_key(|node| data.original_number(*node));
            old.extend(nodes);
            starts.push(old.len());
        }
        let mut new = vec![0; old.len()];
        for (number, node) in (0..).zip(&old) {
            new[*node as usize] = number;
        }
        let mut order = Self { old, new, starts, neighbours: 0 };
        let inside = |part: usize| {
            let count = |old: &u32| order.inside(data, part, *old).count();
            order.nodes(part).iter().map(count).sum::<usize>()
        };
        order.neighbours = (0..order.parts()).map(inside).sum();
        order
    }

    fn parts(&self) -> usize {
        self.starts.len() - 1
    }

    /// The old numbers of a part's nodes.
    fn nodes(&self, part: usize) -> &[u32] {
        &self.old[self.starts[part]..self.starts[part + 1]]
    }

    /// The neighbours of a node inside its part, in numbers of the part.
    fn inside<'a>(
        &'a self,
        data: &'a Dataset,
        part: usize,
        old: u32,
    ) -> impl Iterator<Item = u32> + 'a {
        let (start, end) = (self.starts[part] as u32, self.starts[part + 1] as u32);
        let numbers = data.graph.neighbours(old).iter().map(|other| self.new[*other as usize]);
        numbers.filter(move |new| (start..end).contains(new)).map(move |new| new - start)
    }
}

/// Tensors that are written element by element.
struct Stream<'a> {
    out: Writer,
    block: Vec<u8>,
    told: &'a dyn Fn(u64),
}

impl Stream<'_> {
    #[inline]
    fn put<T: Pod>(&mut self, values: &[T]) -> Result<(), Error> {
        self.block.extend_from_slice(bytemuck::cast_slice(values));
        if self.block.len() >= BLOCK_BYTES { self.flush() } else { Ok(()) }
    }

    /// A zero, and where each of these lengths ends.
    fn put_ends(&mut self, lengths: impl Iterator<Item = usize>) -> Result<(), Error> {
        let mut end = 0_u64;
        self.put(&[end])?;
        for length in lengths {
            end += length as u64;
            self.put(&[end])?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.out.write(&self.block)?;
        (self.told)(self.block.len() as u64);
        self.block.clear();
        Ok(())
    }

    fn finish(mut self) -> Result<(), Error> {
        self.flush()?;
        Ok(self.out.finish()?)
    }
}

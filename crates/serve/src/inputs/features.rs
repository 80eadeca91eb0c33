//! A request's values in the form that the engine reads.

use bytemuck::AnyBitPattern;
use hither_kernels::bag::Ids;

use super::{Decoder, Given, LENGTHS, VALUES};
use crate::error::Error;
use crate::receive::Held;
use crate::tensor::{Array, Data, Datatype, Tensor};

/// A checked request: shapes fit the model, offsets are proven, and no bag is longer than the model
/// allows. Ids are checked as their rows are looked up.
#[derive(Debug)]
pub struct Features {
    pub samples: usize,
    /// Ids in all tables.
    pub ids: usize,
    pub(crate) dense: Array<f32>,
    pub(crate) sparse: Lists,
    /// The request's share of the budget, until it is answered.
    pub(super) _held: Held,
}

/// Ids, where their sender laid them out.
#[derive(Debug)]
pub(crate) enum Lists {
    Joined(List),
    PerTable(Vec<List>),
}

#[derive(Debug)]
pub(crate) struct List {
    ids: IdArray,
    pub offsets: Array<i64>,
    pub weights: Option<Array<f32>>,
}

#[derive(Debug)]
enum IdArray {
    /// As unsigned numbers, so that −1 is the largest, which means a pruned row to the kernels.
    Short(Array<u32>),
    Long(Array<i64>),
}

impl Lists {
    fn all(&self) -> &[List] {
        match self {
            Self::Joined(list) => std::slice::from_ref(list),
            Self::PerTable(lists) => lists,
        }
    }

    pub(super) fn ids(&self) -> usize {
        self.all().iter().map(|list| list.ids.len()).sum()
    }

    /// The first bag that is longer than `most`: its table, and its ids.
    pub(super) fn long_bag(&self, samples: usize, most: usize) -> Option<(usize, usize)> {
        self.all().iter().enumerate().find_map(|(at, list)| {
            let lengths = list.offsets.windows(2).map(|pair| (pair[1] - pair[0]) as usize);
            let mut long = lengths.enumerate().filter(|(_, length)| *length > most);
            // In a joined list the bags of a table follow those of the table before.
            long.next().map(|(bag, length)| (at + bag / samples.max(1), length))
        })
    }

    /// Bytes of arrays that do not lie in the buffer that was received.
    pub(super) fn made_bytes(&self) -> usize {
        let list = |list: &List| {
            let ids = match &list.ids {
                IdArray::Short(ids) => ids.made_bytes(),
                IdArray::Long(ids) => ids.made_bytes(),
            };
            let weights = list.weights.as_ref().map_or(0, Array::made_bytes);
            ids + list.offsets.made_bytes() + weights
        };
        self.all().iter().map(list).sum()
    }
}

impl List {
    pub fn ids(&self) -> Ids<'_> {
        match &self.ids {
            IdArray::Short(ids) => Ids::U32(ids),
            IdArray::Long(ids) => Ids::I64(ids),
        }
    }
}

impl Decoder<'_> {
    /// `sparse` [B, ids of all tables]. The kernels read table after table, so ids are moved,
    /// once, wherever they lie in the message.
    pub(super) fn matrix(&self, tensor: Tensor, samples: usize) -> Result<Lists, Error> {
        let width = self.signature.width();
        if tensor.shape[..] != [samples as i64, width as i64] {
            return self.wrong_shape(&tensor, &[samples as i64, width as i64]);
        }
        let lengths = &self.signature.ids_per_bag;
        let datatype = self.id_type(&tensor)?;
        let rows = match &tensor.data {
            Data::Raw(bytes) => bytes,
            Data::Int32(ids) => bytemuck::cast_slice(ids),
            Data::Int64(ids) => bytemuck::cast_slice(ids),
            Data::Fp32(_) => unreachable!("`check_size` compared the types"),
        };
        let ids = match datatype {
            Datatype::Int32 => IdArray::Short(Array::Made(transposed(rows, width, lengths))),
            _ => IdArray::Long(Array::Made(transposed(rows, width, lengths))),
        };
        let mut offsets = Vec::with_capacity(lengths.len() * samples + 1);
        let mut end = 0;
        offsets.push(end);
        for length in lengths {
            for _ in 0..samples {
                end += *length as i64;
                offsets.push(end);
            }
        }
        Ok(Lists::Joined(List { ids, offsets: Array::Made(offsets), weights: None }))
    }

    /// `values` and `lengths`.
    pub(super) fn joined(
        &self,
        given: Given,
        samples: usize,
        count: usize,
    ) -> Result<Lists, Error> {
        let Some(values) = given.values else { return self.missing(VALUES, count) };
        let Some(lengths) = given.lengths else { return self.missing(LENGTHS, count) };
        let tables = self.signature.tables.len() as i64;
        let expected = tables.saturating_mul(samples as i64);
        let is_list = lengths.shape[..] == [expected];
        let is_matrix = lengths.shape[..] == [tables, samples as i64];
        if !is_list && !is_matrix {
            return self.wrong_shape(&lengths, &[expected]);
        }
        let ids = self.list_ids(values)?;
        let offsets = match self.ids(lengths)? {
            IdArray::Short(lengths) => summed(lengths.iter().map(|one| i64::from(*one as i32))),
            IdArray::Long(lengths) => summed(lengths.iter().copied()),
        };
        let Some(offsets) = offsets.filter(|offsets| offsets.last() == Some(&(ids.len() as i64)))
        else {
            let ids = ids.len();
            return self.refuse(format!(
                "`lengths` must not be negative, and their sum must be the number of `values`, {ids}"
            ));
        };
        let weights = given.weights.map(|weights| self.list_weights(weights, ids.len()));
        let weights = weights.transpose()?;
        Ok(Lists::Joined(List { ids, offsets: Array::Made(offsets), weights }))
    }

    /// `TABLE.indices` and `TABLE.offsets`.
    pub(super) fn per_table(
        &self,
        given: Given,
        samples: usize,
        count: usize,
    ) -> Result<Lists, Error> {
        let names = &self.signature.tables;
        let list = |(table, [indices, offsets, weights]): (usize, [Option<Tensor>; 3])| {
            let name = &names[table];
            let Some(indices) = indices else {
                return self.missing(&format!("{name}.indices"), count);
            };
            let Some(offsets) = offsets else {
                return self.missing(&format!("{name}.offsets"), count);
            };
            let ids = self.list_ids(indices)?;
            let offsets = self.offsets(offsets, samples, ids.len())?;
            let weights = weights.map(|weights| self.list_weights(weights, ids.len()));
            Ok(List { ids, offsets, weights: weights.transpose()? })
        };
        let lists: Result<Vec<List>, Error> =
            given.tables.into_iter().enumerate().map(list).collect();
        Ok(Lists::PerTable(lists?))
    }

    /// Offsets with the end of the last bag, which senders may leave out.
    fn offsets(&self, tensor: Tensor, samples: usize, ids: usize) -> Result<Array<i64>, Error> {
        let count = match tensor.shape[..] {
            [count] if count == samples as i64 || count == samples as i64 + 1 => count as usize,
            _ => return self.wrong_shape(&tensor, &[samples as i64]),
        };
        let name = tensor.name.clone();
        let offsets = match self.ids(tensor)? {
            IdArray::Long(offsets) if count > samples => offsets,
            IdArray::Long(offsets) => {
                Array::Made(offsets.iter().copied().chain([ids as i64]).collect())
            }
            IdArray::Short(offsets) => {
                let last = (count == samples).then_some(ids as i64);
                let offset = |offset: &u32| i64::from(*offset as i32);
                Array::Made(offsets.iter().map(offset).chain(last).collect())
            }
        };
        let is_rising = offsets.windows(2).all(|pair| pair[0] <= pair[1]);
        if offsets.first() != Some(&0) || offsets.last() != Some(&(ids as i64)) || !is_rising {
            return self.refuse(format!(
                "input '{name}': offsets begin at 0, never fall, and end at the number of ids, {ids}"
            ));
        }
        Ok(offsets)
    }

    /// The ids of a list of any length.
    fn list_ids(&self, tensor: Tensor) -> Result<IdArray, Error> {
        if tensor.shape.len() != 1 {
            return self.wrong_shape(&tensor, &[-1]);
        }
        self.ids(tensor)
    }

    fn list_weights(&self, tensor: Tensor, ids: usize) -> Result<Array<f32>, Error> {
        if tensor.shape[..] != [ids as i64] {
            return self.wrong_shape(&tensor, &[ids as i64]);
        }
        self.floats(tensor)
    }

    /// The type of a tensor of ids that has as many as its shape says.
    fn id_type(&self, tensor: &Tensor) -> Result<Datatype, Error> {
        let datatype = self.datatype(tensor, &[Datatype::Int64, Datatype::Int32])?;
        self.check_size(tensor, datatype)?;
        Ok(datatype)
    }

    fn ids(&self, tensor: Tensor) -> Result<IdArray, Error> {
        let datatype = self.id_type(&tensor)?;
        Ok(match (tensor.data, datatype) {
            (Data::Raw(bytes), Datatype::Int32) => IdArray::Short(Array::from_bytes(bytes)),
            (Data::Raw(bytes), _) => IdArray::Long(Array::from_bytes(bytes)),
            (Data::Int32(ids), _) => {
                IdArray::Short(Array::Made(ids.into_iter().map(|id| id as u32).collect()))
            }
            (Data::Int64(ids), _) => IdArray::Long(Array::Made(ids)),
            (Data::Fp32(_), _) => unreachable!("`check_size` compared the types"),
        })
    }
}

impl IdArray {
    fn len(&self) -> usize {
        match self {
            Self::Short(ids) => ids.len(),
            Self::Long(ids) => ids.len(),
        }
    }
}

/// The values of a tensor that was checked to be FP32.
pub(super) fn floats(data: Data) -> Array<f32> {
    match data {
        Data::Raw(bytes) => Array::from_bytes(bytes),
        Data::Fp32(values) => Array::Made(values),
        Data::Int32(_) | Data::Int64(_) => unreachable!("`check_size` compared the types"),
    }
}

/// Offsets from lengths; `None` if one is negative or the sum is too large.
fn summed(lengths: impl ExactSizeIterator<Item = i64>) -> Option<Vec<i64>> {
    let mut offsets = Vec::with_capacity(lengths.len() + 1);
    let mut end = 0i64;
    offsets.push(end);
    for length in lengths {
        end = end.checked_add(length).filter(|_| length >= 0)?;
        offsets.push(end);
    }
    Some(offsets)
}

/// Rows of all tables' ids, at any alignment, become the ids of all samples, table after table.
fn transposed<T: AnyBitPattern>(rows: &[u8], width: usize, lengths: &[usize]) -> Vec<T> {
    let size = size_of::<T>();
    let mut ids = Vec::with_capacity(rows.len() / size);
    let mut start = 0;
    for length in lengths {
        let bag = start..start + length * size;
        let bags = rows.chunks_exact((width * size).max(1)).map(|row| &row[bag.clone()]);
        match length {
            1 => ids.extend(bags.map(bytemuck::pod_read_unaligned::<T>)),
            _ => bags.for_each(|bag| {
                ids.extend(bag.chunks_exact(size).map(bytemuck::pod_read_unaligned::<T>));
            }),
        }
        start = bag.end;
    }
    ids
}

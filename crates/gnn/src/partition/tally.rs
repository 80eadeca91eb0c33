//! Sums by key over the neighbours of one node: by part, of which there are few, or by cluster, of which
//! there may be as many as nodes.

/// Sums by part.
pub struct Links {
    /// Gathered before use, so that the processor waits for many neighbours at a time.
    pending: Vec<(u32, u32)>,
    of_part: Vec<i64>,
    touched: Vec<u32>,
}

impl Links {
    pub fn new(parts: usize) -> Self {
        Self { pending: vec![], of_part: vec![0; parts], touched: vec![] }
    }

    /// Adds the parts and weights of the neighbours; neighbours in no part do not count.
    pub fn count(&mut self, neighbours: impl Iterator<Item = (u32, u32)>) {
        for part in self.touched.drain(..) {
            self.of_part[part as usize] = 0;
        }
        self.pending.clear();
        self.pending.extend(neighbours);
        for (part, weight) in &self.pending {
            let Some(links) = self.of_part.get_mut(*part as usize) else { continue };
            if *links == 0 {
                self.touched.push(*part);
            }
            *links += i64::from(*weight);
        }
    }

    pub fn to(&self, part: u32) -> i64 {
        self.of_part[part as usize]
    }

    /// Parts with neighbours, in the order in which they were met.
    pub fn parts(&self) -> &[u32] {
        &self.touched
    }

    /// The allowed part with most links; the lowest number of equals.
    pub fn best(&self, may: impl Fn(u32) -> bool) -> Option<u32> {
        let open = self.touched.iter().copied().filter(|part| may(*part));
        open.min_by_key(|part| (-self.to(*part), *part))
    }
}

/// Sums by any key: a hash table sized by the node's neighbours, which stays in the fastest cache; one
/// entry per key would miss all of them.
#[derive(Default)]
pub struct Tally {
    pending: Vec<(u32, u32)>,
    slots: Vec<u32>,
    sums: Vec<(u32, u32)>,
}

const FREE: u32 = u32::MAX;

impl Tally {
    /// Sums of the weights by key, in the order in which keys were met.
    pub fn sum(&mut self, entries: impl Iterator<Item = (u32, u32)>) -> &mut [(u32, u32)] {
        self.pending.clear();
        self.pending.extend(entries);
        let slots = (2 * self.pending.len().max(8)).next_power_of_two();
        if self.slots.len() < slots {
            self.slots.resize(slots, FREE);
        }
        self.slots[..slots].fill(FREE);
        self.sums.clear();
        for (key, weight) in &self.pending {
            let mut at = (key.wrapping_mul(0x9e37_79b1) >> 7) as usize & (slots - 1);
            loop {
                let slot = self.slots[at];
                if slot == FREE {
                    self.slots[at] = self.sums.len() as u32;
                    self.sums.push((*key, *weight));
                    break;
                }
                let (other, sum) = &mut self.sums[slot as usize];
                if other == key {
                    *sum = sum.saturating_add(*weight);
                    break;
                }
                at = (at + 1) & (slots - 1);
            }
        }
        &mut self.sums
    }
}

/// Counts, and which of them is the smallest: a tournament tree, in which a change costs the logarithm
/// of their number.
pub struct Least {
    counts: Vec<u32>,
    /// Winner of each match; the children of `at` are `2 at` and `2 at + 1`, the root is 1.
    tree: Vec<u32>,
    leaves: usize,
}

impl Least {
    pub fn new(counts: Vec<u32>) -> Self {
        let leaves = counts.len().next_power_of_two();
        // Leaves beyond the counts never win.
        let mut tree = vec![FREE; 2 * leaves];
        for part in 0..counts.len() {
            tree[leaves + part] = part as u32;
        }
        let mut least = Self { counts, tree, leaves };
        for at in (1..leaves).rev() {
            least.play(at);
        }
        least
    }

    pub fn count(&self, part: u32) -> u32 {
        self.counts[part as usize]
    }

    pub fn counts(&self) -> &[u32] {
        &self.counts
    }

    pub fn least(&self) -> u32 {
        self.tree[1]
    }

    pub fn add(&mut self, part: u32, change: i32) {
        let count = &mut self.counts[part as usize];
        *count = count.wrapping_add_signed(change);
        let mut at = (self.leaves + part as usize) / 2;
        while at > 0 {
            self.play(at);
            at /= 2;
        }
    }

    fn play(&mut self, at: usize) {
        let key = |part: u32| (self.counts.get(part as usize).copied().unwrap_or(FREE), part);
        let (left, right) = (self.tree[2 * at], self.tree[2 * at + 1]);
        self.tree[at] = if key(left) <= key(right) { left } else { right };
    }
}

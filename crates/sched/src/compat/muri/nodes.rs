//! First fit on equal nodes, filled from empty at every event.

#[derive(Debug)]
pub(super) struct Nodes {
    per_node: u32,
    free: Vec<u32>,
    /// Nodes nobody uses.
    idle: usize,
    /// Scratch for the nodes a large job takes.
    taken: Vec<usize>,
}

impl Nodes {
    pub(super) fn new(nodes: usize, per_node: u32) -> Self {
        Self { per_node, free: vec![per_node; nodes], idle: nodes, taken: Vec::new() }
    }

    pub(super) fn clear(&mut self) {
        self.free.fill(self.per_node);
        self.idle = self.free.len();
    }

    /// Takes `gpus`, or nothing. `from` is where the search for this size begins: within one plan
    /// nodes only fill up, so what did not fit this size before will not fit it again.
    pub(super) fn place(&mut self, gpus: u32, from: &mut usize) -> bool {
        if gpus > self.per_node {
            self.place_across(gpus, from)
        } else {
            self.place_on_one(gpus, from)
        }
    }

    fn place_on_one(&mut self, gpus: u32, from: &mut usize) -> bool {
        let Some(step) = self.free[*from..].iter().position(|&free| free >= gpus) else {
            *from = self.free.len();
            return false;
        };
        *from += step;
        let free = &mut self.free[*from];
        self.idle -= usize::from(*free == self.per_node);
        *free -= gpus;
        true
    }

    /// The first idle nodes whole, then the first other node that has the rest.
    fn place_across(&mut self, gpus: u32, from: &mut usize) -> bool {
        let whole = (gpus / self.per_node) as usize;
        let rest = gpus % self.per_node;
        if self.idle < whole {
            return false;
        }
        let per_node = self.per_node;
        self.taken.clear();
        let idle = (*from..self.free.len()).filter(|&n| self.free[n] == per_node);
        self.taken.extend(idle.take(whole));
        *from = self.taken[0];
        let mut last = None;
        if rest > 0 {
            let fits = |n: &usize| self.free[*n] >= rest && !self.taken.contains(n);
            last = (0..self.free.len()).find(fits);
            if last.is_none() {
                return false;
            }
        }
        for &n in &self.taken {
            self.free[n] = 0;
        }
        self.idle -= whole;
        if let Some(n) = last {
            self.idle -= usize::from(self.free[n] == per_node);
            self.free[n] -= rest;
        }
        true
    }
}

//! How running jobs slow each other on shared links: network cards, uplinks of racks and of all larger
//! places, and cores.
//!
//! A job communicates in bursts, and the bursts of different jobs interleave. So a link slows nobody
//! until the jobs together send more through it, on average, than it carries. Then the communication of
//! all of them is *stretched* by the same factor, until the link is just full. A stretched job sends less
//! per second because its iterations take longer, so the factor is a fixed point: two jobs that compute for
//! 1 s and fill a link for 2 s take 4 s each on that link, and the link never rests.
//!
//! Stretches are max-min fair over all links: every stretched job crosses a full link on which nobody is
//! stretched less. They follow from the set of running jobs alone, not from how it came about. The
//! simulator keeps the truth here, and the scheduler another copy with what it believes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use hither_core::Seconds;

use crate::cluster::{Cluster, PlaceId, Placement};
use crate::job::{JobId, Profile};
use crate::network::{IterationCost, Network, Shape};
use crate::order::SortKey;

/// Where jobs meet: the link of a part, or the core of a place.
type Spot = u32;

/// A link counts as full from here on, to within rounding.
const FULL: f64 = 1.0 + 1e-12;
/// A link is filled to within this share of its capacity, in at most so many steps; ten are usual.
const PRECISION: f64 = 1e-12;
const STEPS_MAX: u32 = 200;

#[derive(Debug, Clone)]
struct Flow {
    /// With the bandwidth that it has alone.
    shape: Shape,
    cost: IterationCost,
    /// The spots that it uses, and the bytes that an iteration sends through each.
    spots: Vec<(Spot, f64)>,
    /// How much longer its communication takes than alone.
    stretch: f64,
}

impl Flow {
    /// Bytes per second through a spot that carries so many per iteration.
    fn load(&self, bytes: f64, stretch: f64) -> f64 {
        bytes / self.cost.iteration_s(stretch).max(self.cost.bandwidth_s * stretch)
    }
}

/// The spots of one level of the network.
#[derive(Debug, Clone)]
struct Spots {
    /// The first part's link; those of the other parts follow.
    links: Spot,
    /// The first place's core, if cores limit anything.
    cores: Option<Spot>,
}

/// All jobs that send anything between machines, and where they meet.
#[derive(Debug, Clone, Default)]
pub struct Contention {
    flows: BTreeMap<JobId, Flow>,
    /// By level from 1 on: inside machines nothing is shared.
    levels: Vec<Spots>,
    /// By spot: bytes per second that it carries.
    capacity: Vec<f64>,
    /// By spot: the jobs that use it, by id, and what each puts on it if it is not stretched.
    jobs: Vec<Vec<(JobId, f64)>>,
    /// By spot: whether its jobs would send more than it carries if none were stretched. Only such
    /// spots can slow anybody.
    is_tight: Vec<bool>,
    /// Spots whose jobs have changed since the last settlement, some of them twice.
    touched: Vec<Spot>,
    /// Jobs that have started since then.
    started: BTreeMap<JobId, Shape>,
}

/// What would become of running jobs if one more ran at a place.
#[derive(Debug, Clone, PartialEq)]
pub struct Trial {
    /// An iteration of the job itself, among the others.
    pub iteration_s: Seconds,
    /// Jobs whose pace would change: time of an iteration before, and after.
    pub others: Vec<(JobId, Seconds, Seconds)>,
}

/// How loaded the links of one level are, as shares of their bandwidth.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LinkLoad {
    /// Over all links of the level.
    pub mean: f64,
    pub busiest: f64,
}

impl Contention {
    pub fn new(network: &Network) -> Self {
        let mut capacity = Vec::new();
        let mut levels = Vec::new();
        for (links, cores) in network.links.iter().zip(&network.cores).skip(1) {
            let first = capacity.len() as Spot;
            capacity.extend(links);
            // Cores without a limit are nobody's concern.
            let limits = cores.iter().any(|core| core.is_finite());
            let first_core = limits.then_some(capacity.len() as Spot);
            if limits {
                capacity.extend(cores);
            }
            levels.push(Spots { links: first, cores: first_core });
        }
        Self {
            flows: BTreeMap::new(),
            levels,
            jobs: vec![Vec::new(); capacity.len()],
            is_tight: vec![false; capacity.len()],
            capacity,
            touched: Vec::new(),
            started: BTreeMap::new(),
        }
    }

    /// A job starts. Many may start and stop before stretches are settled anew.
    pub fn start(
        &mut self,
        id: JobId,
        profile: &Profile,
        placement: &Placement,
        cluster: &Cluster,
        network: &Network,
    ) {
        self.started.insert(id, network.shape(cluster, placement));
        self.add(id, profile, placement, cluster, network);
    }

    /// The same for those who never ask who has started.
    pub fn add(
        &mut self,
        id: JobId,
        profile: &Profile,
        placement: &Placement,
        cluster: &Cluster,
        network: &Network,
    ) {
        let shape = network.shape(cluster, placement);
        if let Some(flow) = self.flow(profile, placement, &shape, cluster, network) {
            self.insert(id, flow);
        }
    }

    /// What a job there sends between machines; `None`: nothing.
    fn flow(
        &self,
        profile: &Profile,
        placement: &Placement,
        shape: &Shape,
        cluster: &Cluster,
        network: &Network,
    ) -> Option<Flow> {
        let sends = placement.slots.len() > 1 && profile.gradient_bytes > 0.0;
        sends.then(|| Flow {
            shape: *shape,
            cost: network.iteration_cost(profile, shape),
            spots: self.spots(profile, shape, placement, cluster, network),
            stretch: 1.0,
        })
    }

    /// A job stops.
    pub fn stop(&mut self, id: JobId) {
        self.started.remove(&id);
        self.remove(id);
    }

    /// Settles all stretches. Returns every job whose stretch has changed and every job that has started
    /// since the last time, by id, with the bandwidth that it has now.
    pub fn settle(&mut self) -> Vec<(JobId, Shape)> {
        let mut changed = std::mem::take(&mut self.started);
        for (id, _) in self.stretch_anew() {
            changed.insert(id, self.flows[&id].shape);
        }
        let shape = |(id, shape): (JobId, Shape)| {
            let stretch = self.flows.get(&id).map_or(1.0, |flow| flow.stretch);
            (id, if stretch == 1.0 { shape } else { shape.stretched(stretch) })
        };
        changed.into_iter().map(shape).collect()
    }

    /// What would happen if the job ran there, with this shape, and no longer where it runs now.
    pub fn trial(
        &mut self,
        id: JobId,
        profile: &Profile,
        placement: &Placement,
        shape: &Shape,
        cluster: &Cluster,
        network: &Network,
    ) -> Trial {
        let flow = self.flow(profile, placement, shape, cluster, network);
        let cost = match &flow {
            Some(flow) => flow.cost,
            None => network.iteration_cost(profile, shape),
        };
        let fills = |flow: &Flow| self.fills_any(id, flow);
        let (stretch, others) =
            match self.flows.contains_key(&id) || flow.as_ref().is_some_and(fills) {
                true => self.try_out(id, flow),
                false => (1.0, Vec::new()),
            };
        Trial { iteration_s: cost.iteration_s(stretch), others }
    }

    /// The jobs that would go faster if this one stopped: time of an iteration before, and after.
    pub fn trial_stop(&mut self, id: JobId) -> Vec<(JobId, Seconds, Seconds)> {
        self.stretch_anew();
        // Who is not stretched crosses no full link, and slows nobody.
        match self.flows.get(&id).is_some_and(|flow| flow.stretch > 1.0) {
            true => self.try_out(id, None).1,
            false => Vec::new(),
        }
    }

    /// Whether any spot would be tight if this flow came to it. Otherwise it slows nobody, and nobody slows it.
    fn fills_any(&self, id: JobId, flow: &Flow) -> bool {
        flow.spots.iter().any(|&(spot, bytes)| {
            let jobs = &self.jobs[spot as usize];
            let (before, after) = jobs.split_at(jobs.partition_point(|&(other, _)| other < id));
            // In the order in which `load_alone` adds them up.
            let first = before.iter().map(|&(_, load)| load).sum::<f64>() + flow.load(bytes, 1.0);
            let load = after.iter().fold(first, |sum, &(_, load)| sum + load);
            load > self.capacity[spot as usize] * FULL
        })
    }

    /// Takes the job off all links, lets it start anew as this flow, and undoes both. Returns its stretch in
    /// between, and the others whose pace would change.
    fn try_out(&mut self, id: JobId, flow: Option<Flow>) -> (f64, Vec<(JobId, Seconds, Seconds)>) {
        self.stretch_anew();
        let before = self.remove(id);
        if let Some(flow) = flow {
            self.insert(id, flow);
        }
        let was_tight: Vec<(Spot, bool)> =
            self.touched.iter().map(|&spot| (spot, self.is_tight[spot as usize])).collect();
        let changed = self.stretch_anew();
        let stretch = self.flows.get(&id).map_or(1.0, |flow| flow.stretch);
        let pace = |(other, before): (JobId, f64)| {
            let Flow { cost, stretch, .. } = &self.flows[&other];
            (other, cost.iteration_s(before), cost.iteration_s(*stretch))
        };
        let others = changed.iter().copied().filter(|c| c.0 != id).map(pace).collect();
        self.remove(id);
        if let Some(flow) = before {
            self.insert(id, flow);
        }
        // All is as it was before, so it need not be worked out again.
        self.touched.clear();
        for (spot, was_tight) in was_tight {
            self.is_tight[spot as usize] = was_tight;
        }
        for (other, before) in changed.into_iter().filter(|c| c.0 != id) {
            self.flows.get_mut(&other).expect("it did not leave").stretch = before;
        }
        (stretch, others)
    }

    /// A link that carries more than it can if jobs do so many iterations per second: its load as a share
    /// of its capacity, beyond `rounding`, and its level.
    pub fn overload(&self, rate: impl Fn(JobId) -> f64, rounding: f64) -> Option<(usize, f64)> {
        // Measured steps may be shorter than their bytes take.
        let shares = self.load_shares(rate, |flow| !flow.cost.is_measured());
        let spot = shares.iter().position(|&share| share > 1.0 + rounding)?;
        let level = self.levels.partition_point(|level| level.links as usize <= spot);
        Some((level, shares[spot]))
    }

    /// The load of each level's links if jobs do so many iterations per second, as shares of their
    /// bandwidth: mean over the links, and the busiest.
    pub fn link_loads(&self, rate: impl Fn(JobId) -> f64) -> Vec<LinkLoad> {
        let shares = self.load_shares(rate, |_| true);
        let load = |(nth, level): (usize, &Spots)| {
            let next = self.levels.get(nth + 1).map_or(shares.len(), |next| next.links as usize);
            let end = level.cores.map_or(next, |cores| cores as usize);
            let links = shares[level.links as usize..end].iter().map(|share| share.min(1.0));
            let count = links.len().max(1) as f64;
            LinkLoad {
                mean: links.clone().sum::<f64>() / count,
                busiest: links.fold(0.0, f64::max),
            }
        };
        self.levels.iter().enumerate().map(load).collect()
    }

    /// By spot: what the flows put on it, as a share of what it carries.
    fn load_shares(&self, rate: impl Fn(JobId) -> f64, counts: impl Fn(&Flow) -> bool) -> Vec<f64> {
        let mut load = vec![0.0; self.capacity.len()];
        for (&id, flow) in self.flows.iter().filter(|(_, flow)| counts(flow)) {
            let rate = rate(id);
            for &(spot, bytes) in &flow.spots {
                load[spot as usize] += rate * bytes;
            }
        }
        load.iter().zip(&self.capacity).map(|(load, most)| load / most).collect()
    }

    /// The spots that a job uses on every level up to its tier.
    fn spots(
        &self,
        profile: &Profile,
        shape: &Shape,
        placement: &Placement,
        cluster: &Cluster,
        network: &Network,
    ) -> Vec<(Spot, f64)> {
        let traffic = network.traffic(profile.gradient_bytes, shape);
        let mut spots = Vec::new();
        let mut parts: Vec<PlaceId> = placement.slots.iter().map(|s| s.machine).collect();
        for (level, here) in self.levels.iter().enumerate().take(shape.tier().level()) {
            let bytes = traffic[level + 1];
            let mut places: Vec<PlaceId> =
                parts.iter().map(|&part| cluster.around(level, part)).collect();
            places.sort_unstable();
            spots.extend(parts.iter().map(|&part| (here.links + part, bytes)));
            if let Some(first) = here.cores {
                // Each part puts its bytes on the core that it shares with the others.
                let cores = places.chunk_by(|a, b| a == b);
                spots.extend(cores.map(|same| (first + same[0], bytes * same.len() as f64)));
            }
            places.dedup();
            parts = places;
        }
        spots
    }

    fn insert(&mut self, id: JobId, flow: Flow) {
        for &(spot, bytes) in &flow.spots {
            let jobs = &mut self.jobs[spot as usize];
            let at = jobs.partition_point(|&(other, _)| other < id);
            jobs.insert(at, (id, flow.load(bytes, 1.0)));
            self.touched.push(spot);
        }
        self.flows.insert(id, flow);
    }

    fn remove(&mut self, id: JobId) -> Option<Flow> {
        let flow = self.flows.remove(&id)?;
        for &(spot, _) in &flow.spots {
            self.jobs[spot as usize].retain(|&(other, _)| other != id);
            self.touched.push(spot);
        }
        Some(flow)
    }

    /// Stretches the jobs at touched spots, and all that are connected with them by tight spots.
    /// Returns those whose stretch has changed, with the one that they had.
    fn stretch_anew(&mut self) -> Vec<(JobId, f64)> {
        if self.touched.is_empty() {
            return Vec::new();
        }
        let mut to_visit: Vec<Spot> = Vec::new();
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        for &spot in &touched {
            let was_tight = std::mem::replace(&mut self.is_tight[spot as usize], false);
            self.is_tight[spot as usize] =
                self.load_alone(spot) > self.capacity[spot as usize] * FULL;
            if was_tight || self.is_tight[spot as usize] {
                to_visit.push(spot);
            }
        }
        touched.clear();
        self.touched = touched; // its memory
        if to_visit.is_empty() {
            return Vec::new();
        }
        let mut ids: BTreeSet<JobId> = BTreeSet::new();
        let mut tight: BTreeSet<Spot> = BTreeSet::new();
        while let Some(spot) = to_visit.pop() {
            if self.is_tight[spot as usize] && !tight.insert(spot) {
                continue;
            }
            for &(id, _) in &self.jobs[spot as usize] {
                if ids.insert(id) {
                    let spots = self.flows[&id].spots.iter().map(|s| s.0);
                    to_visit.extend(spots.filter(|&spot| self.is_tight[spot as usize]));
                }
            }
        }
        let flows: Vec<&Flow> = ids.iter().map(|id| &self.flows[id]).collect();
        let links = Self::links(&flows, &tight, &self.capacity);
        let stretches = stretches(&flows, links);
        let mut changed = Vec::new();
        for (id, stretch) in ids.into_iter().zip(stretches) {
            let flow = self.flows.get_mut(&id).expect("listed above");
            let before = std::mem::replace(&mut flow.stretch, stretch);
            if before != stretch {
                changed.push((id, before));
            }
        }
        changed
    }

    /// What a spot would carry if nobody were stretched.
    fn load_alone(&self, spot: Spot) -> f64 {
        self.jobs[spot as usize].iter().map(|&(_, load)| load).sum()
    }

    fn links(flows: &[&Flow], tight: &BTreeSet<Spot>, capacity: &[f64]) -> Vec<SharedLink> {
        let tight: Vec<Spot> = tight.iter().copied().collect();
        let link = |&spot: &Spot| SharedLink { room: capacity[spot as usize], users: Vec::new() };
        let mut links: Vec<SharedLink> = tight.iter().map(link).collect();
        for (at, flow) in flows.iter().enumerate() {
            for (spot, bytes) in &flow.spots {
                if let Ok(number) = tight.binary_search(spot) {
                    links[number].users.push((at, *bytes));
                }
            }
        }
        links
    }
}

/// A link that several jobs fill.
struct SharedLink {
    /// What the jobs whose stretch is settled leave of it.
    room: f64,
    /// The other jobs, by index, and the bytes that an iteration of each sends.
    users: Vec<(usize, f64)>,
}

impl SharedLink {
    fn load(&self, flows: &[&Flow], stretch: f64) -> f64 {
        self.users.iter().map(|&(at, bytes)| flows[at].load(bytes, stretch)).sum()
    }

    /// The stretch of its jobs at which it is just full, given that it is at least `least`. One over the
    /// load grows nearly in proportion to the stretch, which suits the secant method; the bounds keep it safe.
    fn stretch(&self, flows: &[&Flow], least: f64) -> f64 {
        let excess = |stretch: f64| self.room / self.load(flows, stretch) - 1.0;
        let (mut low, mut at_low) = (least, excess(least));
        if self.users.is_empty() || at_low >= 0.0 {
            return least;
        }
        // No job sends more than its bytes in the time that sending them takes.
        let most = |&(at, bytes): &(usize, f64)| bytes / flows[at].cost.bandwidth_s;
        let mut high = (self.users.iter().map(most).sum::<f64>() / self.room).max(least);
        let mut at_high = excess(high).max(0.0);
        let mut low_stayed = None;
        for _ in 0..STEPS_MAX {
            let secant = low + (high - low) * -at_low / (at_high - at_low);
            let middle = if secant > low && secant < high { secant } else { 0.5 * (low + high) };
            let at_middle = excess(middle);
            if at_middle.abs() < PRECISION || high - low <= PRECISION * high {
                return middle;
            }
            // The Illinois rule: an end that stays twice counts half, so that both ends come nearer.
            if at_middle < 0.0 {
                (low, at_low) = (middle, at_middle);
                at_high *= if low_stayed == Some(false) { 0.5 } else { 1.0 };
                low_stayed = Some(false);
            } else {
                (high, at_high) = (middle, at_middle);
                at_low *= if low_stayed == Some(true) { 0.5 } else { 1.0 };
                low_stayed = Some(true);
            }
        }
        high
    }
}

/// The stretch of each flow. All stretches fall together from above: the link that is full first, at the
/// largest stretch, settles its flows, and the others fall on.
fn stretches(flows: &[&Flow], mut links: Vec<SharedLink>) -> Vec<f64> {
    let mut settled: Vec<Option<f64>> = vec![None; flows.len()];
    let mut crosses: Vec<Vec<usize>> = vec![Vec::new(); flows.len()];
    for (number, link) in links.iter().enumerate() {
        link.users.iter().for_each(|&(at, _)| crosses[at].push(number));
    }
    // A settled flow only ever leaves more room to others: a link's stretch, once found, can only fall.
    let mut is_stale = vec![false; links.len()];
    let mut by_stretch: BinaryHeap<(SortKey, Reverse<usize>)> = (links.iter().enumerate())
        .map(|(number, link)| (SortKey(link.stretch(flows, 1.0)), Reverse(number)))
        .collect();
    while let Some((SortKey(stretch), Reverse(number))) = by_stretch.pop() {
        if std::mem::take(&mut is_stale[number]) {
            let stretch = links[number].stretch(flows, 1.0);
            by_stretch.push((SortKey(stretch), Reverse(number)));
            continue;
        }
        if stretch <= 1.0 {
            break;
        }
        for (at, _) in std::mem::take(&mut links[number].users) {
            settled[at] = Some(stretch);
            for &other in crosses[at].iter().filter(|&&other| other != number) {
                let SharedLink { room, users } = &mut links[other];
                let place = users.iter().position(|u| u.0 == at).expect("it crosses the link");
                let (_, bytes) = users.remove(place);
                *room = (*room - flows[at].load(bytes, stretch)).max(f64::MIN_POSITIVE);
                is_stale[other] = true;
            }
        }
    }
    settled.into_iter().map(|stretch| stretch.unwrap_or(1.0)).collect()
}

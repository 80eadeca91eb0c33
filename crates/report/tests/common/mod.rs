//! A record from a seed: a small queueing simulation, true enough that the plots have the shape of
//! real ones. It is no scheduler; it only has to keep the promises of the rows.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use hither_core::record::*;
use hither_core::summary::Quantiles;

/// SplitMix64, so that the fixture depends on nothing.
pub struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

pub fn header(seed: u64, racks: u32, machines_per_rack: u32) -> Header {
    let machine = |i: u32| MachineRow {
        name: format!("gpu{i:03}"),
        parent: i / machines_per_rack,
        gpus: 8,
        gpu_type: if i / machines_per_rack % 4 == 3 { "A100" } else { "V100" }.into(),
    };
    Header {
        hither: "0.1.0".into(),
        trace: format!("synthetic-{seed}.csv"),
        seed,
        congestion: 1.5,
        cluster: ClusterRow {
            name: "fixture".into(),
            levels: LevelRow::racks((0..racks).map(|r| format!("rack{r:02}"))),
            machines: (0..racks * machines_per_rack).map(machine).collect(),
        },
        settings: Default::default(),
    }
}

/// How a made-up policy behaves.
pub struct Habit {
    pub name: &'static str,
    /// How far down the queue it looks for a job that fits.
    pub depth: usize,
    /// Whether it prefers few machines in one rack.
    pub packs: bool,
    pub preempts: bool,
    pub timers: bool,
}

pub const HABITS: [Habit; 4] = [
    Habit { name: "fifo", depth: 1, packs: false, preempts: false, timers: false },
    Habit { name: "backfill", depth: 12, packs: false, preempts: false, timers: false },
    Habit { name: "delay-auto", depth: 12, packs: true, preempts: false, timers: true },
    Habit { name: "las", depth: 12, packs: true, preempts: true, timers: false },
];

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Arrive(u32),
    Finish(u32, u32),
    Down(u32),
    Up(u32),
}

struct Run<'a> {
    header: &'a Header,
    habit: &'a Habit,
    random: Random,
    free: Vec<u32>,
    down: Vec<bool>,
    queue: VecDeque<u32>,
    due: BinaryHeap<Reverse<(u64, Due)>>,
    jobs: Vec<JobRow>,
    work_s: Vec<f64>,
    since: Vec<Option<f64>>,
    starts: Vec<u32>,
    running: Vec<u32>,
    events: Vec<EventRow>,
    tier_gpu_s: [f64; 3],
}

/// One run of `jobs` jobs; the trace depends on the header's seed only, not on the habit.
pub fn record(header: &Header, habit: &Habit, jobs: u32) -> RunRecord {
    let mut trace = Random(header.seed);
    let gpus: u32 = header.cluster.machines.iter().map(|m| m.gpus).sum();
    let models = ["resnet50", "bert-large", "gpt2-xl", "dlrm", "vgg16", "<b>evil</b>"];
    let mut run = Run {
        header,
        habit,
        random: Random(header.seed ^ 0xabcd),
        free: header.cluster.machines.iter().map(|m| m.gpus).collect(),
        down: vec![false; header.cluster.machines.len()],
        queue: VecDeque::new(),
        due: BinaryHeap::new(),
        jobs: Vec::new(),
        work_s: Vec::new(),
        since: vec![None; jobs as usize],
        starts: vec![0; jobs as usize],
        running: Vec::new(),
        events: Vec::new(),
        tier_gpu_s: [0.0; 3],
    };
    // Mean work: 4.7 GPUs for two hours, a third more where a job is spread over racks. The cluster
    // is about nine tenths busy then.
    let gap_s = 4.7 * 7200.0 * 1.35 / (0.9 * f64::from(gpus));
    let mut now = 0.0;
    for job in 0..jobs {
        now -= gap_s * (1.0 - trace.unit()).ln();
        let want = [1, 1, 1, 2, 2, 4, 4, 8, 8, 16][trace.below(10)].min(gpus);
        let work_s = -7200.0 * (1.0 - trace.unit()).ln() + 30.0;
        run.jobs.push(JobRow {
            job,
            name: format!("job-{job:05}</script><img src=x onerror=alert(1)>"),
            user: format!("user{}", trace.below(30)),
            model: models[trace.below(models.len())].into(),
            gpus: want,
            submit_s: now,
            start_s: None,
            finish_s: now,
            run_s: 0.0,
            queue_s: 0.0,
            comm_s: Some(0.0),
            ideal_s: work_s,
            tier: 0,
            preemptions: 0,
            failures: 0,
            state: JobState::Finished,
            machines: Vec::new(),
        });
        run.work_s.push(work_s);
        run.push(now, Due::Arrive(job));
    }
    for i in 0..header.cluster.machines.len() as u32 / 8 {
        let at = now * trace.unit();
        run.push(at, Due::Down(i * 8));
        run.push(at + now * 0.05, Due::Up(i * 8));
    }
    run.finish()
}

impl Run<'_> {
    fn push(&mut self, t: f64, due: Due) {
        self.due.push(Reverse(((t * 1000.0) as u64, due)));
    }

    fn event(&mut self, t: f64, what: Happening) {
        self.events.push(EventRow { t, what });
    }

    fn finish(mut self) -> RunRecord {
        let mut now = 0.0;
        while let Some(Reverse((ms, due))) = self.due.pop() {
            now = ms as f64 / 1000.0;
            match due {
                Due::Arrive(job) => {
                    self.event(now, Happening::Arrive { job, gpus: self.jobs[job as usize].gpus });
                    self.queue.push_back(job);
                    if self.habit.preempts && self.random.below(4) == 0 && !self.running.is_empty()
                    {
                        let victim = self.running[self.random.below(self.running.len())];
                        self.stop(now, victim, Some(Reason::Priority));
                    }
                    if self.habit.timers && self.random.below(25) == 0 {
                        let gpus = [2, 4, 8, 16][self.random.below(4)];
                        let machine_s = 60.0 * f64::from(gpus) * (0.5 + self.random.unit());
                        self.event(
                            now,
                            Happening::Timers {
                                gpus,
                                timers_s: [
                                    ("machine_s".into(), machine_s),
                                    ("rack_s".into(), 2.5 * machine_s),
                                ]
                                .into(),
                            },
                        );
                    }
                }
                Due::Finish(job, start) if start == self.starts[job as usize] => {
                    self.stop(now, job, None);
                    if job % 8 == 0 {
                        let mean = vec![f64::from(job % 40) / 100.0, f64::from(job % 72) / 100.0];
                        let busiest = mean.iter().map(|load| 1.25 * load).collect();
                        self.event(now, Happening::Links { mean, busiest });
                    }
                }
                Due::Finish(..) => continue,
                Due::Down(machine) => {
                    self.event(now, Happening::MachineDown { machine });
                    self.down[machine as usize] = true;
                    let lost: Vec<u32> =
                        self.running.iter().copied().filter(|&j| self.uses(j, machine)).collect();
                    lost.into_iter().for_each(|job| self.stop(now, job, Some(Reason::Failure)));
                }
                Due::Up(machine) => {
                    self.event(now, Happening::MachineUp { machine });
                    self.down[machine as usize] = false;
                }
            }
            self.fill(now);
        }
        let summary = self.summary(now);
        RunRecord { summary, jobs: self.jobs, events: self.events }
    }

    fn uses(&self, job: u32, machine: u32) -> bool {
        self.jobs[job as usize].machines.iter().any(|&(m, _)| m == machine)
    }

    fn fill(&mut self, now: f64) {
        let mut at = 0;
        while at < self.queue.len().min(self.habit.depth) {
            let job = self.queue[at];
            match self.place(self.jobs[job as usize].gpus) {
                Some(machines) => {
                    self.queue.remove(at);
                    self.start(now, job, machines);
                }
                None => at += 1,
            }
        }
    }

    fn place(&mut self, gpus: u32) -> Option<Vec<(u32, u32)>> {
        let turn = self.random.below(1 << 20);
        let free = |m: usize| if self.down[m] { 0 } else { self.free[m] };
        let n = self.free.len();
        if (0..n).map(free).sum::<u32>() < gpus {
            return None;
        }
        let mut order: Vec<usize> = (0..n).filter(|&m| free(m) > 0).collect();
        if self.habit.packs {
            // The tightest machine that holds all, and otherwise the emptiest ones.
            order.sort_by_key(|&m| {
                (free(m) < gpus, if free(m) < gpus { 99 - free(m) } else { free(m) }, m)
            });
        } else {
            let by = turn % order.len();
            order.rotate_left(by);
        }
        let mut left = gpus;
        let mut machines = Vec::new();
        for m in order {
            let count = free(m).min(left);
            if count > 0 {
                machines.push((m as u32, count));
                left -= count;
            }
        }
        Some(machines)
    }

    fn start(&mut self, now: f64, job: u32, machines: Vec<(u32, u32)>) {
        let rack = |m: u32| self.header.cluster.machines[m as usize].parent;
        let one_rack = machines.iter().all(|&(m, _)| rack(m) == rack(machines[0].0));
        let tier = if machines.len() == 1 {
            0
        } else if one_rack {
            1
        } else {
            2
        };
        for &(m, gpus) in &machines {
            self.free[m as usize] -= gpus;
        }
        let row = &mut self.jobs[job as usize];
        row.start_s.get_or_insert(now);
        row.tier = tier;
        row.machines = machines.clone();
        self.starts[job as usize] += 1;
        self.since[job as usize] = Some(now);
        self.running.push(job);
        let slow = [1.0, 1.15, 1.6][usize::from(tier)];
        let end = now + self.work_s[job as usize] * slow;
        self.push(end, Due::Finish(job, self.starts[job as usize]));
        self.event(
            now,
            Happening::Start { job, tier, machines, why: Some("it is its turn".into()) },
        );
    }

    fn stop(&mut self, now: f64, job: u32, reason: Option<Reason>) {
        let at = job as usize;
        let held = now - self.since[at].take().unwrap();
        let row = &mut self.jobs[at];
        for &(m, gpus) in &row.machines {
            self.free[m as usize] += gpus;
        }
        row.run_s += held;
        let slow = [1.0, 1.15, 1.6][usize::from(row.tier)];
        *row.comm_s.get_or_insert(0.0) += held * (1.0 - 1.0 / slow);
        if row.gpus > 1 {
            self.tier_gpu_s[usize::from(row.tier)] += held * f64::from(row.gpus);
        }
        self.running.retain(|&j| j != job);
        match reason {
            None => {
                row.finish_s = now;
                row.queue_s = (now - row.submit_s - row.run_s).max(0.0);
                self.event(now, Happening::Finish { job });
            }
            Some(reason) => {
                row.preemptions += 1;
                self.starts[at] += 1;
                self.work_s[at] = (self.work_s[at] - held / slow).max(1.0);
                self.queue.push_back(job);
                self.event(
                    now,
                    Happening::Preempt { job, reason, why: Some("makes room for job 0".into()) },
                );
            }
        }
    }

    fn summary(&self, end: f64) -> Summary {
        let of = |value: fn(&JobRow) -> f64| {
            Quantiles::from_values(&self.jobs.iter().map(value).collect::<Vec<_>>())
        };
        let gpus: u32 = self.header.cluster.machines.iter().map(|m| m.gpus).sum();
        let busy: f64 = self.jobs.iter().map(|j| j.run_s * f64::from(j.gpus)).sum();
        let comm_gpu_s: f64 =
            self.jobs.iter().map(|j| j.comm_s.unwrap_or(0.0) * f64::from(j.gpus)).sum();
        let run_s: f64 = self.jobs.iter().map(|j| j.run_s).sum();
        let comm_s_total: f64 = self.jobs.iter().filter_map(|j| j.comm_s).sum();
        let multi: f64 = self.tier_gpu_s.iter().sum();
        Summary {
            policy: self.habit.name.into(),
            seed: self.header.seed,
            jobs: self.jobs.len() as u64,
            finished: self.jobs.len() as u64,
            cancelled: 0,
            jct_s: of(JobRow::jct_s),
            queue_s: of(|j| j.queue_s),
            makespan_s: end,
            gpu_utilisation: busy / (end * f64::from(gpus)),
            clairvoyant: false,
            useful_utilisation: Some((busy - comm_gpu_s) / (end * f64::from(gpus))),
            fragmentation: Some(0.2),
            comm_s_total: Some(comm_s_total),
            comm_share: Some(comm_s_total / run_s),
            tier_share: self.tier_gpu_s.map(|s| s / multi).to_vec(),
            preemptions: self.jobs.iter().map(|j| u64::from(j.preemptions)).sum(),
            failures: 0,
            events: self.events.len() as u64,
            sim_cpu_s: 0.0,
            notes: Vec::new(),
        }
    }
}

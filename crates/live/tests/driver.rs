//! The driver against a made-up cluster that obeys or ignores what it is told.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use hither_core::topology::Topology;
use hither_live::attempts::Limits;
use hither_live::drive::{Driver, Options};
use hither_live::engine::{
    Complaint, Counts, Engine, Error, Held, Limit, Obstacle, Order, Scope, Seen, SeenJob, SeenNode,
    Stands, Wants,
};
use hither_live::journal::{Journal, Setup};
use hither_live::wish::Wish;
use hither_live::{replay, what_if};
use hither_sched::cluster::Status;
use hither_sched::event::End;
use hither_sched::job::{Host, Split};
use hither_sched::policy;
use hither_sched::profile::Library;
use hither_sched::sim::{self, Scenario};

/// One rack with two machines of four GPUs.
struct World {
    seen: Seen,
    given: Vec<Order>,
    /// Whether orders have an effect.
    obeys: bool,
    topology: Topology,
}

#[derive(Clone)]
struct Fake(Rc<RefCell<World>>);

impl Fake {
    fn new() -> Self {
        let (seen, given) = (Seen::default(), Vec::new());
        let topology = Topology::uniform(1, 2, 4);
        let mut world = World { seen, given, obeys: true, topology };
        for name in ["gpu001", "gpu002"] {
            let (gpu_type, state) = ("gpu".into(), "idle".into());
            let host = Host::UNKNOWN;
            let node = SeenNode { gpus: 4, gpu_type, host, status: Status::Up, state };
            world.seen.nodes.insert(name.into(), node);
        }
        Self(Rc::new(RefCell::new(world)))
    }

    fn submit(&self, key: &str, wants: Wants) {
        let job = SeenJob {
            name: "job".into(),
            user: "ada".into(),
            account: "ml".into(),
            qos: "normal".into(),
            managed: true,
            stands: Stands::Held,
            wants,
            wish: Wish::default(),
            reason: String::new(),
            obstacle: Obstacle::None,
            required: Vec::new(),
            holds: Vec::new(),
            restarts: 0,
            can_requeue: true,
            submitted_s: 0.0,
            started_s: None,
            limit_s: None,
        };
        self.0.borrow_mut().seen.jobs.insert(key.into(), job);
    }

    fn change(&self, key: &str, change: impl FnOnce(&mut SeenJob)) {
        change(self.0.borrow_mut().seen.jobs.get_mut(key).unwrap());
    }

    fn stands(&self, key: &str) -> Stands {
        self.0.borrow().seen.jobs[key].stands
    }

    fn given(&self) -> Vec<Order> {
        std::mem::take(&mut self.0.borrow_mut().given)
    }
}

impl Engine for Fake {
    fn name(&self) -> &'static str {
        "the engine"
    }

    fn topology(&mut self) -> Result<(Topology, Vec<String>), Error> {
        Ok((self.0.borrow().topology.clone(), Vec::new()))
    }

    fn observe(&mut self) -> Result<Seen, Error> {
        Ok(self.0.borrow().seen.clone())
    }

    fn act(&mut self, orders: &[Order]) -> Result<Vec<Complaint>, Error> {
        let mut world = self.0.borrow_mut();
        world.given.extend(orders.iter().cloned());
        let obeyed = if world.obeys { orders } else { &[] };
        for order in obeyed {
            let job = world.seen.jobs.get_mut(order.job()).unwrap();
            match order {
                Order::Bind { nodes, .. } => job.required = nodes.clone(),
                Order::Release { .. } => {
                    job.stands = Stands::Running;
                    job.holds = job.required.iter().map(|node| held(node, 4)).collect();
                }
                Order::HandOver { .. } => job.stands = Stands::Queued,
                Order::Hold { .. } => job.stands = Stands::Held,
                Order::Requeue { .. } => {
                    (job.stands, job.holds) = (Stands::Held, Vec::new());
                    job.restarts += 1;
                }
                Order::Signal { .. } => {}
            }
        }
        Ok(Vec::new())
    }
}

fn held(node: &str, gpus: u32) -> Held {
    Held { node: node.into(), gpus, host: Host::NONE }
}

fn gpus(count: u32) -> Wants {
    Wants::Gpus { count, gpu_type: None, split: Split::ANY }
}

fn open(fake: &Fake, journal: Journal) -> Driver<Fake> {
    open_as("dally", fake, journal)
}

fn open_as(policy: &str, fake: &Fake, journal: Journal) -> Driver<Fake> {
    let setup = Setup {
        policy: policy.into(),
        settings: String::new(),
        partitions: vec!["gpu".into()],
        cluster: String::new(),
        epoch_s: 0.0,
        version: "0.2.0".into(),
    };
    let limits = Limits { start_s: 10.0, tries_max: 2, ..Limits::default() };
    let options = Options { limits, act: true, keep_s: 1e9 };
    let topology = fake.0.borrow().topology.clone();
    Driver::open(fake.clone(), journal, &topology, setup, Library::builtin(), options, 0.0).unwrap()
}

fn bind(job: &str, nodes: &[&str]) -> Order {
    let fewest = if nodes.len() == 2 && job == "2" { 2 } else { 1 };
    let nodes = nodes.iter().map(|n| (*n).into()).collect();
    Order::Bind { job: job.into(), nodes, fewest }
}

#[test]
fn a_job_is_bound_looked_at_and_only_then_released() {
    let fake = Fake::new();
    let mut driver = open(&fake, Journal::in_memory().unwrap());
    fake.submit("7", gpus(8));
    driver.step(1.0).unwrap();
    assert_eq!(fake.given(), [bind("7", &["gpu001", "gpu002"])]);
    driver.step(1.1).unwrap();
    assert_eq!(fake.given(), [Order::Release { job: "7".into() }]);
    driver.step(1.2).unwrap();
    assert_eq!(driver.scheduler.state.running.len(), 1);
    // Slurm requeues it by itself: it is held, and placed again.
    fake.change("7", |job| {
        (job.stands, job.restarts, job.holds) = (Stands::Queued, 1, Vec::new());
    });
    for now in [2.0, 2.1, 2.2, 2.3, 4.5, 4.6, 6.7, 6.8] {
        driver.step(now).unwrap();
    }
    assert!(fake.given().contains(&Order::Hold { job: "7".into() }));
    assert_eq!(fake.stands("7"), Stands::Running);
    fake.change("7", |job| job.stands = Stands::Over(End::Finished));
    driver.step(9.0).unwrap();
    assert_eq!(driver.scheduler.state.unfinished, 0);
    assert!(replay::replay(&driver.journal, |_| {}).unwrap().decisions > 0);
}

#[test]
fn orders_without_effect_are_given_again_until_the_job_is_left_to_the_engine() {
    let fake = Fake::new();
    let mut driver = open(&fake, Journal::in_memory().unwrap());
    fake.0.borrow_mut().obeys = false;
    fake.submit("7", gpus(4));
    for tenth in 0..300 {
        driver.step(f64::from(tenth) / 10.0).unwrap();
    }
    let given = fake.given();
    let binds = given.iter().filter(|order| matches!(order, Order::Bind { .. })).count();
    assert!((8..=14).contains(&binds), "{binds} in two times ten seconds");
    assert!(given.contains(&Order::HandOver { job: "7".into(), unbind: None }), "{given:?}");
    assert_eq!(driver.scheduler.state.unfinished, 0);
}

#[test]
fn a_driver_that_was_killed_goes_on_from_journal_and_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal.redb");
    let fake = Fake::new();
    ["7", "8", "9"].iter().for_each(|job| fake.submit(job, gpus(4)));
    for life in 0..12 {
        // Dropped at the end of the loop, with all that it remembers.
        let mut driver = open(&fake, Journal::open(&path).unwrap());
        driver.step(f64::from(life)).unwrap();
        if life == 6 {
            assert_eq!([fake.stands("7"), fake.stands("8")], [Stands::Running; 2]);
            fake.change("7", |job| job.stands = Stands::Over(End::Finished));
        }
    }
    assert_eq!([fake.stands("8"), fake.stands("9")], [Stands::Running; 2]);
    let given = fake.given();
    for job in ["7", "8", "9"] {
        let order = Order::Release { job: job.into() };
        assert_eq!(given.iter().filter(|given| **given == order).count(), 1, "job {job}");
    }
    let journal = Journal::open(&path).unwrap();
    assert!(replay::replay(&journal, |_| {}).unwrap().segments > 1);
}

#[test]
fn gangs_of_a_fixed_shape_wait_for_machines_that_hold_it() {
    let fake = Fake::new();
    let mut driver = open(&fake, Journal::in_memory().unwrap());
    fake.submit("1", gpus(2));
    driver.step(1.0).unwrap();
    assert_eq!(fake.given(), [bind("1", &["gpu001"])]);
    // Six GPUs are free, but only one machine has four.
    let split = Split::even(4);
    fake.submit("2", Wants::Gpus { count: 8, gpu_type: None, split });
    fake.submit("3", Wants::Gpus { count: 4, gpu_type: None, split });
    driver.step(2.0).unwrap();
    assert!(fake.given().contains(&bind("3", &["gpu002"])));
    ["1", "3"].iter().for_each(|job| fake.change(job, |j| j.stands = Stands::Over(End::Finished)));
    driver.step(3.0).unwrap();
    assert_eq!(fake.given(), [bind("2", &["gpu001", "gpu002"])]);
    // Left to Slurm, it still asks for two nodes.
    let seen = driver.seen.jobs["2"].clone();
    let bound = SeenJob { required: vec!["gpu001".into()], ..seen };
    let order = Order::HandOver { job: "2".into(), unbind: Some(2) };
    assert_eq!(bound.hand_over(&"2".into()), order);
}

#[test]
fn a_simulation_begins_where_the_cluster_stands() {
    let fake = Fake::new();
    let mut driver = open(&fake, Journal::in_memory().unwrap());
    fake.submit("1", gpus(8));
    [1.0, 1.1, 1.2].iter().for_each(|now| drop(driver.step(*now).unwrap()));
    fake.submit("2", gpus(4));
    driver.step(2.0).unwrap();
    let topology = Topology::uniform(1, 2, 4);
    let by_journal = what_if::start(&driver.scheduler.state, &topology);
    let seen = what_if::books(&driver.seen, &topology, &Library::builtin(), 2.0);
    let by_slurm = what_if::start(&seen, &topology);
    for start in [by_journal, by_slurm] {
        let jobs = start.jobs.into_iter().map(Arc::new).collect();
        let scenario = Scenario { jobs, running: start.running, ..Scenario::default() };
        let options = sim::Options { record: true, check: true, ..sim::Options::default() };
        let fifo = (policy::find("fifo").unwrap().build)(&Default::default());
        let record = sim::simulate("fifo", fifo, &start.topology, &scenario, &options).unwrap();
        let [first, second] = &record.jobs[..] else { panic!("{:?}", record.jobs) };
        assert_eq!((first.name.as_str(), first.start_s), ("1", Some(0.0)));
        assert_eq!(first.machines.len(), 2);
        assert_eq!((second.name.as_str(), second.start_s), ("2", Some(first.finish_s)));
    }
}

#[test]
fn what_hither_cannot_place_is_handed_over_and_what_others_hold_is_seen() {
    let fake = Fake::new();
    let mut driver = open(&fake, Journal::in_memory().unwrap());
    fake.submit("1", Wants::Nothing);
    fake.submit("2", Wants::Other("TresPerSocket=gres:gpu:4 NumNodes=2".into()));
    fake.submit("3", gpus(9));
    driver.step(1.0).unwrap();
    let hand_over = |job: &str| Order::HandOver { job: job.into(), unbind: None };
    assert_eq!(fake.given(), ["1", "2", "3"].map(hand_over));
    fake.change("2", |job| {
        (job.stands, job.holds) = (Stands::Running, vec![held("gpu001", 3)]);
    });
    fake.submit("4", gpus(4));
    driver.step(2.0).unwrap();
    assert_eq!(fake.given(), [bind("4", &["gpu002"])]);
    assert_eq!(driver.scheduler.state.cluster.machines[0].foreign, 3);
    // Released by hand: it is Slurm's from then on.
    fake.submit("5", gpus(8));
    driver.step(3.0).unwrap();
    fake.change("5", |job| job.stands = Stands::Queued);
    driver.step(4.0).unwrap();
    assert!(driver.journal.about("5", 9).unwrap().iter().any(|s| s.text.contains("by hand")));
}

/// Resident memory of this process, in bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Ended jobs are forgotten everywhere but in the journal, whose cache is bounded.
#[test]
fn memory_stays_flat_over_many_short_jobs() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::new();
    let mut driver = open(&fake, Journal::open(&dir.path().join("journal.redb")).unwrap());
    let mut now = 0.0;
    let mut key = 0;
    let mut run = |jobs: u32| {
        for _ in 0..jobs / 8 {
            let keys: Vec<String> = (0..8).map(|k| (key + k).to_string()).collect();
            key += 8;
            keys.iter().for_each(|key| fake.submit(key, gpus(1)));
            for _ in 0..3 {
                now += 0.1;
                driver.step(now).unwrap();
            }
            assert!(keys.iter().all(|key| fake.stands(key) == Stands::Running));
            keys.iter().for_each(|key| {
                fake.change(key, |job| job.stands = Stands::Over(End::Finished));
            });
            now += 0.1;
            driver.step(now).unwrap();
            fake.0.borrow_mut().seen.jobs.clear();
            fake.given();
        }
        resident_bytes()
    };
    // By then the journal's cache is full.
    let before = run(8_000);
    let after = run(4_000);
    let grown = after.saturating_sub(before);
    assert!(grown < 1 << 20, "{grown} bytes over 4,000 jobs");
}

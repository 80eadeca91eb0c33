//! Link prediction: what LightGCN computes, its losses and their slopes, and training over parts.

use std::sync::Arc;

use hither_core::record::train::Machine;
use hither_core::seed;
use hither_gnn::checkpoint;
use hither_gnn::correct::{Judge, ServerSteps};
use hither_gnn::links::metric::LinkMetric;
use hither_gnn::links::pairs::{Loss, NegativesBy, Pairs};
use hither_gnn::links::{Held, Shares, top};
use hither_gnn::local::Pace;
use hither_gnn::mode::Mode;
use hither_gnn::model::{Kind, Model, Spec};
use hither_gnn::partition::Partition;
use hither_gnn::sample::{Fanout, Sampler};
use hither_gnn::task::{Goal, Objective, Task};
use hither_gnn::train::{Settings, Trainer};
use hither_gnn::update::Updates;
use hither_gnn::{Dataset, Features, Graph, Labels, Links, Metric, Split, parts};
use rand::RngExt;

const USERS: usize = 60;
const ITEMS: usize = 40;
const GROUPS: usize = 4;

/// Users and items in groups; users mostly take items of their own group.
fn shop() -> Dataset {
    let mut random = seed::stream(1, "shop");
    let mut pairs = vec![];
    for user in 0..USERS {
        for _ in 0..9 {
            let item = random.random_range(0..ITEMS);
            let item =
                if random.random_bool(0.9) { item / GROUPS * GROUPS + user % GROUPS } else { item };
            pairs.push((user as u32, (USERS + item) as u32));
        }
    }
    let graph = Graph::from_edges(USERS + ITEMS, &pairs).expect("a graph");
    let labels = Labels::Classes { of: vec![u32::MAX; USERS + ITEMS].into(), count: 0 };
    let (split, features) = (Split::default(), Features::one_hot(USERS + ITEMS));
    let mut data = Dataset::new("shop".into(), graph, features, labels, split, Metric::Accuracy);
    data.links = Some(Links { users: Some(USERS), ..Links::default() });
    data.hold_out(Shares { valid: 0.1, test: 0.1 }, 3).expect("held out");
    data
}

fn spec(layers: Vec<Kind>, data: &Dataset) -> Spec {
    Spec { layers, inputs: data.features.dim(), hidden: 8, outputs: 8, steps: 3, ..Spec::default() }
}

fn lightgcn(data: &Dataset) -> Model {
    Model::new(spec(vec![Kind::Embedding, Kind::Light], data)).expect("a model")
}

fn objective(loss: Loss) -> Objective {
    let negatives = if loss == Loss::Softmax { 12 } else { 2 };
    let (negatives_by, metric) = (NegativesBy::Nodes, LinkMetric::Recall(5));
    Objective { loss, negatives, negatives_by, temperature: 0.3, metric, seed: 0 }
}

/// The mean over steps of a dense matrix, by its definition.
#[test]
fn light_convolution_is_the_mean_of_powers() {
    let data = shop();
    let model = lightgcn(&data);
    let weights = model.start(5);
    let (n, graph) = (data.graph.nodes(), &data.graph);
    let mut h: Vec<f64> = weights.params.iter().map(|x| f64::from(*x)).collect();
    let mut mean = h.clone();
    for _ in 0..3 {
        let mut next = vec![0.0; n * 8];
        for u in 0..n as u32 {
            for v in graph.neighbours(u) {
                let scale = 1.0 / ((graph.degree(u) * graph.degree(*v)) as f64).sqrt();
                for column in 0..8 {
                    next[u as usize * 8 + column] += scale * h[*v as usize * 8 + column];
                }
            }
        }
        mean.iter_mut().zip(&next).for_each(|(mean, next)| *mean += next);
        h = next;
    }
    let found = model.infer(&weights, &data).logits;
    let off = found.iter().zip(&mean).map(|(f, m)| (f64::from(*f) - m / 4.0).abs());
    assert!(off.fold(0.0, f64::max) < 1e-6);
}

/// Directions stay, and so do losses: those of the softmax are of cosines, and no other is asked of such a model.
#[test]
fn lengths_of_rows_are_raised_to_the_models_power() {
    let data = shop();
    let plain = lightgcn(&data);
    let weights = plain.start(5);
    let rows = plain.infer(&weights, &data).logits;
    for power in [0.0, 0.5] {
        let model =
            Model::new(Spec { length_power: power, ..plain.spec.clone() }).expect("a model");
        let changed = model.infer(&weights, &data).logits;
        let some = model.infer_nodes(&weights, &data, &[7, 99], 8, |_| {}).logits;
        for (place, node) in [7, 99].into_iter().enumerate() {
            let of = |rows: &[f32], at: usize| rows[at * 8..(at + 1) * 8].to_vec();
            let (row, changed) = (of(&rows, node), of(&changed, node));
            let length = row.iter().map(|x| x * x).sum::<f32>().sqrt();
            for ((x, y), z) in row.iter().zip(&changed).zip(of(&some, place)) {
                assert!((x * length.powf(power - 1.0) - y).abs() < 1e-5 && (z - y).abs() < 1e-5);
            }
        }
    }
}

/// Negatives by links are targets of links: items in proportion to their users, none of them linked to the source.
#[test]
fn negatives_are_drawn_evenly_or_by_links() {
    let data = shop();
    let random = &mut seed::stream(3, "negatives");
    let mut counts = [0_u32; ITEMS];
    const DRAWS: u32 = 40_000;
    let user = 3;
    for _ in 0..DRAWS {
        let item = data.draw_unlinked(user, NegativesBy::Links, |_| false, random);
        counts[item as usize - USERS] += 1;
    }
    let linked = data.graph.neighbours(user);
    let unlinked = (USERS as u32..(USERS + ITEMS) as u32).filter(|item| !linked.contains(item));
    let total: usize = unlinked.map(|item| data.graph.degree(item)).sum();
    for (item, count) in (USERS as u32..).zip(counts) {
        let share = match linked.contains(&item) {
            true => 0.0,
            false => data.graph.degree(item) as f64 / total as f64,
        };
        // Six standard deviations.
        let (expected, d) = (f64::from(DRAWS) * share, (f64::from(DRAWS) * share).sqrt());
        assert!((f64::from(count) - expected).abs() <= 6.0 * d, "{item}: {count}, not {expected}");
    }
}

/// Gradients of every loss against slopes, on the whole graph and on sampled neighbours.
#[test]
fn gradients_are_the_slopes_of_the_loss() {
    let data = shop();
    // Without a ReLU, whose kinks would spoil slopes.
    let stacks = [vec![Kind::Embedding, Kind::Light], vec![Kind::Embedding, Kind::Gcn]];
    for stack in stacks {
        let model = Model::new(spec(stack.clone(), &data)).expect("a model");
        let mut weights = model.start(5);
        // Products of the first rows are too small for steep slopes.
        weights.params.iter_mut().for_each(|param| *param *= 5.0);
        for loss in Loss::ALL {
            for fanout in [Fanout::All, Fanout::AtMost(3)] {
                let mut sampler = Sampler::new(data.graph.nodes());
                let task = Task::Links(objective(loss));
                let (needs, random) = (model.needs(), &mut seed::stream(2, "batch"));
                let examples = vec![3, 40, 41, 200];
                let batch = task.batch(&mut sampler, &data, examples, &fanout, needs, random);
                let mut grads = vec![0.0; weights.params.len()];
                let pass = 0;
                model.gradient(&mut weights.clone(), &data, &batch, pass, &mut grads);
                let steep = (0..grads.len()).filter(|at| grads[*at].abs() > 1e-3);
                let steep: Vec<usize> = steep.step_by(7).take(24).collect();
                assert!(steep.len() > 10, "{stack:?} {loss:?} {fanout:?}");
                for at in steep {
                    let beside = |by: f32| {
                        let mut weights = weights.clone();
                        weights.params[at] += by;
                        model.loss(&weights, &data, &batch)
                    };
                    let slope = (beside(1e-3) - beside(-1e-3)) / 2e-3;
                    let grad = f64::from(grads[at]);
                    let off = (slope - grad).abs() / grad.abs().max(1e-2);
                    assert!(off < 0.03, "{stack:?} {loss:?} {fanout:?}: {grad} is not {slope}");
                }
            }
        }
    }
}

/// The softmax by its definition: negatives that the source is linked to do not count.
#[test]
fn the_softmax_leaves_linked_negatives_out() {
    let data = shop();
    let model = lightgcn(&data);
    let outputs = model.infer(&model.start(5), &data).logits;
    let task = Task::Links(Objective { negatives: ITEMS, ..objective(Loss::Softmax) });
    let mut sampler = Sampler::new(data.graph.nodes());
    let random = &mut seed::stream(2, "batch");
    let examples = vec![0, 5, 77];
    let batch = task.batch(&mut sampler, &data, examples, &Fanout::All, model.needs(), random);
    let Goal::Links(pairs) = &batch.goal else { panic!("links") };
    let cosine = |u: u32, v: u32| {
        let row = |node: u32| &outputs[node as usize * 8..][..8];
        let dot = |a: &[f32], b: &[f32]| {
            a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
        };
        dot(row(u), row(v)) / (dot(row(u), row(u)) * dot(row(v), row(v))).sqrt() / 0.3
    };
    let mut expected = 0.0;
    for (source, target) in pairs.sources.iter().zip(&pairs.targets) {
        let unlinked = (USERS as u32..(USERS + ITEMS) as u32)
            .filter(|node| !data.graph.neighbours(*source).contains(node));
        let others: f64 = unlinked.map(|node| cosine(*source, node).exp()).sum();
        let own = cosine(*source, *target);
        expected += (others + own.exp()).ln() - own;
    }
    let loss = model.loss(&model.start(5), &data, &batch);
    assert!((loss - expected / 3.0).abs() < 1e-5, "{loss} is not {}", expected / 3.0);
}

fn settings(mode: Mode, loss: Loss) -> Settings {
    let pace = Pace { batch: Some(64), fanout: Fanout::All, rate: 0.02, clip: None };
    Settings {
        task: Task::Links(objective(loss)),
        mode,
        rounds: 6,
        local: pace.clone(),
        server: pace,
        server_steps: ServerSteps::Fixed(4),
        machine: Machine { sums_per_s: 1e9, products_per_s: 1e10, link_bytes_per_s: 1e9 },
        seed: 7,
        ..Settings::default()
    }
}

/// Users of two groups in each part, items anywhere.
fn halves(data: &Dataset) -> Partition {
    let part = |node: usize| (node % GROUPS / 2) as u32;
    Partition { of: (0..data.graph.nodes()).map(part).collect(), parts: 2 }
}

fn trainer(settings: Settings, data: &Dataset) -> Trainer {
    let cut = match settings.mode.is_distributed() {
        true => halves(data),
        false => Partition { of: vec![0; data.graph.nodes()], parts: 1 },
    };
    Trainer::new(settings, lightgcn(data), Arc::new(data.clone()), &cut)
}

fn train(trainer: &mut Trainer) {
    while !trainer.is_done() {
        trainer.round(&|| 0.0).expect("a round");
    }
}

/// Items drawn at random would be found with a recall of 5 in 40; groups are found.
#[test]
fn links_are_learnt_in_every_mode() {
    let data = shop();
    for (mode, loss) in [
        (Mode::Single, Loss::Softmax),
        (Mode::Single, Loss::Bpr),
        (Mode::Single, Loss::Bce),
        (Mode::PsgdPa, Loss::Softmax),
        (Mode::Llcg, Loss::Softmax),
        (Mode::LlcgStale, Loss::Bpr),
    ] {
        let mut trainer = trainer(settings(mode, loss), &data);
        train(&mut trainer);
        let best = trainer.best.as_ref().expect("a best model");
        assert!(best.test > 0.3, "{mode:?} {loss:?}: recall {}", best.test);
        let last = trainer.rounds.last().expect("a round");
        assert!(last.further.contains_key("test_ndcg@5"), "{:?}", last.further);
    }
}

#[test]
fn automatic_server_steps_work_on_links() {
    let data = shop();
    let auto = Settings { server_steps: ServerSteps::Auto, ..settings(Mode::Llcg, Loss::Softmax) };
    let mut trainer = trainer(auto, &data);
    train(&mut trainer);
    assert!(trainer.rounds.iter().any(|round| round.server_steps > 0));
    assert!(trainer.rounds[0].work.judge.total() > 0);
}

/// Every edge is in one part, with its user; an item is in each part that has a user of it.
#[test]
fn parts_have_their_users_and_all_items_of_these() {
    let data = shop();
    let parts = parts::cut_links(&data, &halves(&data));
    let edges: usize = parts.iter().map(|(_, part)| part.graph.edges()).sum();
    assert_eq!(edges, data.graph.edges());
    for (nodes, part) in &parts {
        let users = part.links.as_ref().and_then(|links| links.users).expect("users");
        assert!(nodes[..users].iter().all(|node| (*node as usize) < USERS));
        assert!(nodes[users..].iter().all(|node| (*node as usize) >= USERS));
        for (new, old) in nodes[..users].iter().enumerate() {
            assert_eq!(part.graph.degree(new as u32), data.graph.degree(*old));
        }
        // Factors are those of the whole graph, also for items with users elsewhere.
        for (new, old) in nodes.iter().enumerate() {
            assert_eq!(part.graph.edge_roots()[new], data.graph.edge_roots()[*old as usize]);
        }
    }
}

/// A user's row is its one worker's; an item's row is the mean of its workers' by their edges. What
/// is sent are the rows of each part.
#[test]
fn rows_are_averaged_by_edges_and_only_own_rows_are_sent() {
    let data = shop();
    let mut trainer = trainer(settings(Mode::PsgdPa, Loss::Softmax), &data);
    trainer.round(&|| 0.0).expect("a round");
    let round = trainer.rounds[0].clone();
    let cut = parts::cut_links(&data, &halves(&data));
    let rows: usize = cut.iter().map(|(nodes, _)| nodes.len()).sum();
    assert!(rows > USERS + ITEMS, "no item is in both parts");
    assert_eq!(round.bytes.model_up_bytes, 4 * 8 * rows as u64);
    assert_eq!(round.bytes.model_down_bytes, round.bytes.model_up_bytes);
    assert_eq!(trainer.models_bytes(Updates::Fp32), round.bytes.model_up_bytes);
    // A part's row of a node that only it has moved as far as it moved there: by steps of Adam.
    let start = lightgcn(&data).start(7);
    let moved = |node: usize| {
        let at = node * 8..(node + 1) * 8;
        let pairs = start.params[at.clone()].iter().zip(&trainer.global.params[at]);
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    };
    let users: f32 = (0..USERS).map(moved).sum::<f32>() / USERS as f32;
    assert!(users > 0.05, "users' rows moved by {users} only: were they averaged away?");
}

#[test]
fn a_resumed_run_and_any_threads_give_the_same_bytes() {
    let data = shop();
    let on = |threads: usize, work: &(dyn Fn() -> Trainer + Sync)| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        pool.install(work)
    };
    let straight = || {
        let mut trainer = trainer(settings(Mode::Llcg, Loss::Softmax), &data);
        train(&mut trainer);
        trainer
    };
    let (one, three) = (on(1, &straight), on(3, &straight));
    assert_eq!(one.global, three.global);
    let dir = tempfile::TempDir::new().expect("a directory");
    let path = dir.path().join("checkpoint.safetensors");
    let mut first = trainer(settings(Mode::Llcg, Loss::Softmax), &data);
    (0..3).for_each(|_| first.round(&|| 0.0).expect("a round"));
    checkpoint::write(&mut first, &path).expect("written");
    let mut second = trainer(settings(Mode::Llcg, Loss::Softmax), &data);
    checkpoint::restore(&mut second, &path, first.rounds.clone()).expect("restored");
    train(&mut second);
    assert_eq!(one.global, second.global);
    let scores = |trainer: &Trainer| trainer.rounds.iter().map(|r| r.test).collect::<Vec<_>>();
    assert_eq!(scores(&one), scores(&second));
}

/// Held-out edges are gone from the graph, in no other set, and every node keeps an edge.
#[test]
fn held_out_edges_leave_the_graph() {
    let data = shop();
    let links = data.links.as_ref().expect("links");
    assert!(links.valid.len() > 20 && links.test.len() > 20);
    for (source, targets) in links.valid.iter().chain(links.test.iter()) {
        for target in targets {
            assert!(!data.graph.neighbours(source).contains(target));
            assert!(!data.graph.neighbours(*target).contains(&source));
        }
    }
    for (source, targets) in links.valid.iter() {
        assert!(targets.iter().all(|target| !links.test.of(source).contains(target)));
    }
    let with_edges = (0..USERS as u32).filter(|user| data.graph.degree(*user) > 0);
    assert_eq!(with_edges.count(), USERS);
}

/// Against sorting all products.
#[test]
fn the_first_items_are_the_best_unknown_ones() {
    let data = shop();
    let model = lightgcn(&data);
    let outputs = model.infer(&model.start(5), &data);
    let row = |node: u32| &outputs.logits[node as usize * 8..][..8];
    let known = Held::from_pairs(vec![(4, USERS as u32), (4, USERS as u32 + 1)]);
    let sources = [4, 9];
    let ranked = top(&data, &outputs, &sources, &[&known], 6);
    for (place, source) in sources.into_iter().enumerate() {
        let mut all: Vec<(f32, u32)> = (USERS as u32..(USERS + ITEMS) as u32)
            .filter(|item| !data.graph.neighbours(source).contains(item))
            .filter(|item| !known.of(source).contains(item))
            .map(|item| (row(source).iter().zip(row(item)).map(|(a, b)| a * b).sum(), item))
            .collect();
        all.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let first: Vec<u32> = ranked.of(place).iter().map(|(item, _)| *item).collect();
        assert_eq!(first, all[..6].iter().map(|(_, item)| *item).collect::<Vec<_>>());
    }
}

/// Nodes of one kind, each linked to the next ones.
fn ring(nodes: u32) -> Dataset {
    let edges: Vec<(u32, u32)> =
        (0..nodes).flat_map(|u| [(u, (u + 1) % nodes), (u, (u + 2) % nodes)]).collect();
    let graph = Graph::from_edges(nodes as usize, &edges).expect("a graph");
    let labels = Labels::Classes { of: vec![u32::MAX; nodes as usize].into(), count: 0 };
    let (split, features) = (Split::default(), Features::one_hot(nodes as usize));
    let mut data = Dataset::new("ring".into(), graph, features, labels, split, Metric::Accuracy);
    data.hold_out(Shares { valid: 0.1, test: 0.1 }, 3).expect("held out");
    data
}

/// Seen from its other end it would still be learnt from, and harm would be judged by what was just trained.
#[test]
fn a_link_that_judges_is_held_out_from_both_ends() {
    let data = ring(300);
    let mut trainer = trainer(settings(Mode::Single, Loss::Softmax), &data);
    let model = trainer.model.clone();
    let judge = Judge::draw(&mut trainer.server, &model, &data, 7, 1);
    let starts = data.graph.offsets();
    let ends = |at: u32| {
        let source = starts.partition_point(|start| *start <= u64::from(at)) as u32 - 1;
        (source, data.graph.targets()[at as usize])
    };
    let held: Vec<(u32, u32)> = judge.held_out.iter().map(|at| ends(*at)).collect();
    assert!(held.len() > 20 && judge.held_out.is_sorted());
    for (source, target) in &held {
        assert!(held.contains(&(*target, *source)), "{target}–{source} is still learnt from");
    }
}

/// Node 0 is linked to 1 and 2, its validation link is 3 and its test link 4; all other nodes score lower than 4, and
/// these four higher. Among the unlinked nodes alone the test link is first.
#[test]
fn known_links_are_no_rivals_of_the_test() {
    const NODES: usize = 60;
    let edges = [(0, 1), (0, 2), (5, 6)];
    let graph = Graph::from_edges(NODES, &edges).expect("a graph");
    let labels = Labels::Classes { of: vec![u32::MAX; NODES].into(), count: 0 };
    let features = Features::one_hot(NODES);
    let mut data =
        Dataset::new("star".into(), graph, features, labels, Split::default(), Metric::Accuracy);
    let held = |target: u32| Held::from_pairs(vec![(0, target)]);
    data.links = Some(Links { users: None, valid: held(3), test: held(4) });
    let scores = |of_others: f32| {
        let score = |node: usize| match node {
            0 => 1.0,
            1..=3 => 9.0,
            4 => 5.0,
            _ => of_others,
        };
        let logits = (0..NODES).map(score).collect();
        let outputs = hither_gnn::model::Inference { embeddings: None, logits, classes: 1 };
        let objective = Objective { metric: LinkMetric::Mrr, ..objective(Loss::Softmax) };
        hither_gnn::links::metric::scores(&objective, &data, &outputs)
    };
    let first = scores(1.0);
    assert_eq!(first.test, 1.0);
    assert_eq!(first.further.last(), Some(&("test_hits@10".to_owned(), 1.0)));
    // Behind all hundred of them, and among equals in the middle.
    assert_eq!(scores(7.0).test, 1.0 / 101.0);
    assert_eq!(scores(5.0).test, 1.0 / 51.0);
}

/// The softmax of any temperature that may be asked for, against double precision.
#[test]
fn low_temperatures_give_finite_losses_and_slopes() {
    let data = shop();
    let model = lightgcn(&data);
    let weights = model.start(5);
    let rows = model.infer(&weights, &data).logits;
    let row = |node: u32| &rows[node as usize * 8..][..8];
    let cosine = |a: u32, b: u32| {
        let dot = |a: &[f32], b: &[f32]| -> f64 {
            a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        let (a, b) = (row(a), row(b));
        dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
    };
    for temperature in [0.001_f32, 0.005, 0.01, 0.1, 1.0] {
        let objective = Objective { temperature, ..objective(Loss::Softmax) };
        let (sources, targets) = (vec![0, 7, 31], vec![60, 71, 90]);
        let negatives: Vec<u32> = (60..100).collect();
        let pairs =
            Pairs::from_nodes(&objective, &data, sources.clone(), targets.clone(), negatives);
        let mut expected = 0.0;
        for (source, target) in sources.iter().zip(&targets) {
            let near = data.graph.neighbours(*source);
            let others = (60..100_u32).filter(|node| !near.contains(node));
            let own = cosine(*source, *target) / f64::from(temperature);
            let all: Vec<f64> = others
                .map(|node| cosine(*source, node) / f64::from(temperature))
                .chain([own])
                .collect();
            let largest = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = all.iter().map(|x| (x - largest).exp()).sum();
            expected += largest + sum.ln() - own;
        }
        let mut dy = vec![0.0; rows.len()];
        let loss = pairs.loss(&rows, 8, Some(&mut dy));
        let expected = expected / 3.0;
        assert!(
            (loss - expected).abs() < 1e-3 * expected.max(1.0),
            "{temperature}: {loss}, {expected}"
        );
        assert!(dy.iter().all(|slope| slope.is_finite()), "{temperature}");
        assert!(dy.iter().any(|slope| *slope != 0.0), "{temperature}");
    }
}

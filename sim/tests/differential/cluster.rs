//! Compares the model of a cluster with real clusters, while slots move.

use std::sync::Arc;

use pacegate_sim::redis::{Redis, Session, cluster::ClusterView, resp::Reply};
use pacegate_testkit::{
    Random,
    servers::{Client, Cluster, Flavor, Reply as RealReply},
    slot_of,
};

use crate::{START, assert_same, assert_same_state};

const NODES: usize = 2;

/// A cluster of the model next to a real one.
struct Pair {
    nodes: Vec<Redis>,
    sessions: Vec<Session>,
    real: Cluster,
    clients: Vec<Client>,
    /// The slot that moves, and the nodes.
    moving: Option<(u16, usize, usize)>,
}

impl Pair {
    fn start(flavor: Flavor) -> Self {
        let real = Cluster::start(flavor, NODES, 0);
        let addresses = real.nodes().iter().map(|node| ("127.0.0.1".to_owned(), node.port()));
        let addresses = Arc::new(addresses.collect());
        let node = |number| {
            let mut redis = Redis::new().unwrap();
            redis.cluster = Some(ClusterView::new(number, NODES, Arc::clone(&addresses)));
            redis
        };
        let nodes = (0..NODES).map(node).collect();
        let sessions = vec![Session::default(); NODES];
        let clients = real.nodes().iter().map(|node| node.connect().unwrap()).collect();
        Self { nodes, sessions, real, clients, moving: None }
    }

    /// Sends a command to a node of both clusters.
    fn command(&mut self, node: usize, words: &[String], context: &str) {
        let args = words.iter().map(|word| word.clone().into_bytes()).collect();
        let reply = self.nodes[node].execute(&mut self.sessions[node], args, START);
        let real = self.clients[node].command(words).unwrap();
        let context = format!("{context}, node {node}: {words:?}");
        if let (Reply::Error(one), RealReply::Error(other)) = (&reply, &real)
            && (one.starts_with("MOVED") || one.starts_with("ASK "))
        {
            assert_eq!(one, other, "{context}");
        }
        assert_same(&reply, &real, &context);
    }

    fn view(&mut self, node: usize) -> &mut ClusterView {
        self.nodes[node].cluster.as_mut().unwrap()
    }

    fn begin_move(&mut self, slot: u16) {
        let from = self.view(0).owner(slot);
        let to = NODES - 1 - from;
        self.view(to).start_import(slot, from);
        self.view(from).start_export(slot, to);
        self.real.begin_move(slot, to);
        self.moving = Some((slot, from, to));
    }

    /// Moves a key of the slot that moves. Returns false if there is none.
    fn move_key(&mut self) -> bool {
        let Some((slot, from, to)) = self.moving else { return false };
        let Some(key) = self.nodes[from].keys_in_slot(slot).pop() else { return false };
        let [source, target] = self.nodes.get_disjoint_mut([from, to]).unwrap();
        assert!(source.move_key(&key, target, (START, START)));
        let port = self.real.nodes()[to].port().to_string();
        let words =
            [b"MIGRATE", b"127.0.0.1".as_slice(), port.as_bytes(), &key, b"0", b"5000", b"REPLACE"];
        let reply = self.clients[from].command(&words).unwrap();
        assert!(matches!(&reply, RealReply::Simple(text) if text == "OK"), "{reply:?}");
        true
    }

    fn end_move(&mut self) {
        while self.move_key() {}
        let Some((slot, _, to)) = self.moving.take() else { return };
        (0..NODES).for_each(|node| self.view(node).assign(slot, to));
        self.real.end_move(slot, to);
    }

    /// Compares the slot maps: ranges, and the ports of their nodes.
    fn compare_slots(&mut self) {
        let slots = vec![b"CLUSTER".to_vec(), b"SLOTS".to_vec()];
        let model = self.nodes[0].execute(&mut self.sessions[0], slots.clone(), START);
        let Reply::Array(rows) = model else { panic!("{model:?}") };
        let row = |row: &Reply| {
            let Reply::Array(row) = row else { panic!("{row:?}") };
            let (Reply::Int(first), Reply::Int(last), Reply::Array(node)) =
                (&row[0], &row[1], &row[2])
            else {
                panic!("{row:?}")
            };
            let Reply::Int(port) = node[1] else { panic!("{node:?}") };
            (*first, *last, port)
        };
        let mut expected: Vec<_> = rows.iter().map(row).collect();
        let real = self.clients[0].command(&slots).unwrap();
        let row = |row: &RealReply| {
            let row = row.items();
            (row[0].int(), row[1].int(), row[2].items()[1].int())
        };
        let mut found: Vec<_> = real.items().iter().map(row).collect();
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(expected, found);
    }
}

/// Redirections, and commands of scripts in a slot that moves.
#[test]
fn the_model_of_a_cluster_redirects_like_real_ones() {
    for flavor in Flavor::ALL {
        let mut pair = Pair::start(flavor);
        for seed in 0..40 {
            let mut random = Random::new(seed);
            for step in 0..60 {
                let context = format!("{flavor}, seed {seed}, step {step}");
                match random.below(12) {
                    0 if pair.moving.is_none() => pair.begin_move(slot_of(b"{a}")),
                    1 | 2 => drop(pair.move_key()),
                    3 if random.one_in(4) => pair.end_move(),
                    _ => {
                        let node = random.below(NODES as u64) as usize;
                        if random.one_in(3) {
                            pair.command(node, &["ASKING".to_owned()], &context);
                        }
                        pair.command(node, &random_command(&mut random), &context);
                    }
                }
            }
            pair.end_move();
            pair.compare_slots();
            for node in 0..NODES {
                let client = &mut pair.clients[node];
                assert_same_state(&pair.nodes[node], client, &format!("{flavor}, seed {seed}"));
            }
        }
    }
}

fn random_command(random: &mut Random) -> Vec<String> {
    let mut key = || random.pick(&["{a}1", "{a}2", "{a}3", "{b}1", "{b}2"]).to_owned();
    let (one, other) = (key(), key());
    let eval = |script: &str, keys: &[&String]| {
        let words = ["EVAL".to_owned(), script.to_owned(), keys.len().to_string()];
        words.into_iter().chain(keys.iter().copied().cloned()).collect::<Vec<_>>()
    };
    let words = |text: &str| {
        let word = |word: &str| match word {
            "k" => one.clone(),
            "l" => other.clone(),
            word => word.to_owned(),
        };
        text.split(' ').map(word).collect::<Vec<_>>()
    };
    match random.below(16) {
        0 => words("PING"),
        1 => words("GET k"),
        2..4 => words("SET k v"),
        4 => words("MGET k l"),
        5 => words("EXISTS k l"),
        6 => words("UNLINK k"),
        7 => words("UNLINK k l"),
        8 => words("EVALSHA 0123456789012345678901234567890123456789 1 k"),
        9 => eval("return 1", &[]),
        10 => eval("return redis.call('GET', KEYS[1])", &[&one]),
        11 => eval("return redis.call('MGET', KEYS[1], KEYS[2])", &[&one, &other]),
        12 => eval("redis.call('SET', KEYS[1], 'w') return 2", &[&one, &other]),
        13 => eval("redis.call('DEL', KEYS[1]) return redis.call('SET', KEYS[1], 'x')", &[&one]),
        14 => eval("return redis.pcall('GET', KEYS[2])", &[&one, &other]),
        _ => eval("redis.call('DEL', KEYS[1]) return redis.call('EXISTS', KEYS[1])", &[&one]),
    }
}

//! Cycles in a directed graph.

use std::collections::{BTreeMap, BTreeSet};

/// A graph of named nodes, each with the nodes that it depends on.
pub type DependencyGraph = BTreeMap<String, BTreeSet<String>>;

/// The strongly connected components of more than one node, by Tarjan's algorithm.
pub fn circles(graph: &DependencyGraph) -> Vec<Vec<String>> {
    let mut search = ComponentSearch {
        graph,
        index: BTreeMap::new(),
        low: BTreeMap::new(),
        stack: Vec::new(),
        found: Vec::new(),
    };
    for node in graph.keys() {
        if !search.index.contains_key(node.as_str()) {
            search.visit(node);
        }
    }
    let mut found: Vec<Vec<String>> = search.found.into_iter().filter(|circle| circle.len() > 1).collect();
    found.iter_mut().for_each(|circle| circle.sort());
    found.sort();
    found
}

struct ComponentSearch<'a> {
    graph: &'a DependencyGraph,
    index: BTreeMap<&'a str, usize>,
    low: BTreeMap<&'a str, usize>,
    stack: Vec<&'a str>,
    found: Vec<Vec<String>>,
}

impl<'a> ComponentSearch<'a> {
    fn visit(&mut self, node: &'a str) {
        let index = self.index.len();
        self.index.insert(node, index);
        self.low.insert(node, index);
        self.stack.push(node);
        let graph = self.graph;
        for next in graph.get(node).into_iter().flatten() {
            // Tarjan's `low`: the lowest index that a node reaches through nodes on the stack.
            // Edges to finished components do not count.
            let reached = if !self.index.contains_key(next.as_str()) {
                self.visit(next);
                self.low[next.as_str()]
            } else if self.stack.contains(&next.as_str()) {
                self.index[next.as_str()]
            } else {
                continue;
            };
            let low = self.low[node].min(reached);
            self.low.insert(node, low);
        }
        if self.low[node] == index
            && let Some(at) = self.stack.iter().position(|other| *other == node)
        {
            let circle = self.stack.split_off(at);
            self.found.push(circle.into_iter().map(str::to_owned).collect());
        }
    }
}

/// The graph of the parts that nodes belong to.
pub fn quotient(graph: &DependencyGraph, part: impl Fn(&str) -> String) -> DependencyGraph {
    let mut parts = DependencyGraph::new();
    for (node, needs) in graph {
        let own = part(node);
        let others = needs.iter().map(|need| part(need)).filter(|other| *other != own);
        parts.entry(own.clone()).or_default().extend(others);
    }
    parts
}

//! Which modules of a crate name each other.
//!
//! A component is a module below the crate's root, or below a folder with one more level (`shard`).
//! It names another one where a path of its code begins there: in a `use`, a type, a call. Items of
//! the root itself belong to everybody.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use super::{Finding, Source, rust};

/// Modules that reach each other through what they name. Each is a finding, with the others of its
/// circle.
#[must_use]
pub fn cycles(sources: &[Source]) -> Vec<Finding> {
    let modules: BTreeSet<&[String]> = sources.iter().map(|it| it.module.as_slice()).collect();
    let mut found = Vec::new();
    // Below every module that has parts: the parts of one whole are layers.
    let wholes: BTreeSet<&[String]> =
        modules.iter().filter_map(|it| it.split_last().map(|(_, whole)| whole)).collect();
    for whole in wholes {
        let edges = edges(sources, &modules, whole);
        for (part, others) in circles(&edges) {
            let place = [whole, std::slice::from_ref(&part)].concat();
            let Some(source) = sources.iter().find(|it| it.module.starts_with(&place)) else {
                continue;
            };
            found.push(source.finding(0, format!("{} <-> {}", place.join("::"), others.join(" "))));
        }
    }
    found
}

/// From each part of a whole to the other parts that it names.
fn edges(
    sources: &[Source],
    modules: &BTreeSet<&[String]>,
    whole: &[String],
) -> BTreeMap<String, BTreeSet<String>> {
    let part = |module: &[String]| -> Option<String> {
        module.strip_prefix(whole).and_then(<[String]>::first).cloned()
    };
    let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in sources {
        let Some(from) = part(&source.module) else { continue };
        let mut named = Named { here: &source.module, paths: Vec::new() };
        source.items.iter().for_each(|item| named.visit_item(item));
        let to = edges.entry(from.clone()).or_default();
        for path in named.paths {
            let longest = (0..=path.len()).rev().find(|length| modules.contains(&path[..*length]));
            if let Some(other) = longest.and_then(|length| part(&path[..length]))
                && other != from
            {
                to.insert(other);
            }
        }
    }
    edges
}

/// Parts that are reached from what they reach, each with the others.
fn circles(edges: &BTreeMap<String, BTreeSet<String>>) -> Vec<(String, Vec<String>)> {
    let reach: BTreeMap<&String, BTreeSet<&String>> =
        edges.keys().map(|from| (from, reached(edges, from))).collect();
    edges
        .keys()
        .filter_map(|part| {
            let others: Vec<String> = reach[part]
                .iter()
                .filter(|other| {
                    **other != part && reach.get(*other).is_some_and(|it| it.contains(part))
                })
                .map(|other| (*other).clone())
                .collect();
            (!others.is_empty()).then(|| (part.clone(), others))
        })
        .collect()
}

fn reached<'a>(
    edges: &'a BTreeMap<String, BTreeSet<String>>,
    from: &String,
) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&String> = edges[from].iter().collect();
    while let Some(part) = next.pop() {
        if reached.insert(part) {
            next.extend(edges.get(part).into_iter().flatten());
        }
    }
    reached
}

/// Collects the paths that code names, from the crate's root.
struct Named<'a> {
    here: &'a [String],
    paths: Vec<Vec<String>>,
}

impl Named<'_> {
    fn name(&mut self, segments: &[String]) {
        let (mut at, mut rest) = match segments.split_first() {
            Some((first, rest)) if first == "crate" => (Vec::new(), rest),
            Some((first, rest)) if first == "self" => (self.here.to_vec(), rest),
            Some((first, _)) if first == "super" => (self.here.to_vec(), segments),
            _ => return,
        };
        while let Some((first, left)) = rest.split_first()
            && first == "super"
        {
            at.pop();
            rest = left;
        }
        at.extend_from_slice(rest);
        self.paths.push(at);
    }

    fn name_tree(&mut self, before: &[String], tree: &syn::UseTree) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(it) => self.name_tree(&with(&it.ident), &it.tree),
            syn::UseTree::Name(it) if it.ident == "self" => self.name(before),
            syn::UseTree::Name(it) => self.name(&with(&it.ident)),
            syn::UseTree::Rename(it) => self.name(&with(&it.ident)),
            syn::UseTree::Glob(_) => self.name(before),
            syn::UseTree::Group(it) => {
                it.items.iter().for_each(|tree| self.name_tree(before, tree));
            }
        }
    }
}

impl<'a> Visit<'a> for Named<'_> {
    fn visit_item(&mut self, item: &'a syn::Item) {
        if !rust::is_for_tests(rust::attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        self.name_tree(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|it| it.ident.to_string()).collect();
        self.name(&segments);
        visit::visit_path(self, path);
    }
}

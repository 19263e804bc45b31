//! Functions of source files, by their lines.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

use crate::failure::{Doing as _, Failure};

/// A function with a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Function {
    /// Name, after that of its type if it is a method.
    name: String,
    /// Path from the root of the tree.
    file: Rc<str>,
    /// Line of its signature, and last line of its body.
    lines: (u32, u32),
}

impl Function {
    pub(crate) fn new(name: String, file: Rc<str>, lines: (u32, u32)) -> Self {
        Self { name, file, lines }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    /// Line of its signature.
    pub(crate) fn line(&self) -> u32 {
        self.lines.0
    }

    /// Lines of it all.
    pub(crate) fn length(&self) -> u32 {
        self.lines.1 + 1 - self.lines.0
    }

    /// Name without that of the type.
    pub(crate) fn plain(&self) -> &str {
        self.name.rsplit("::").next().unwrap_or(&self.name)
    }
}

/// A source tree, of which files are read as they are needed.
#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
    /// Path of the tree when the program was built; found with the first file.
    built: Option<String>,
    files: HashMap<String, Vec<Function>>,
}

impl Tree {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), built: None, files: HashMap::new() }
    }

    /// The innermost function at a line of a file, by the path that the debug information has; none
    /// in files of others, and in code that the compiler derives.
    pub(crate) fn at(&mut self, path: &str, line: u32) -> Result<Option<&Function>, Failure> {
        if !self.files.contains_key(path) {
            let functions = match self.within(path) {
                Some(file) => functions(&self.root, &file)?,
                None => Vec::new(),
            };
            self.files.insert(path.to_owned(), functions);
        }
        let around = |it: &&Function| (it.lines.0..=it.lines.1).contains(&line);
        Ok(self.files[path].iter().filter(around).max_by_key(|it| it.lines.0))
    }

    /// Path of a file from the root; none if the file is not of this tree. Which part of a path was
    /// the root shows in the first file that is in this tree, too.
    pub(crate) fn within(&mut self, path: &str) -> Option<String> {
        if self.built.is_none() {
            let is_here = |place: usize| self.root.join(&path[place + 1..]).is_file();
            let place = path.match_indices('/').map(|(place, _)| place).find(|it| is_here(*it))?;
            self.built = Some(path[..=place].to_owned());
        }
        let file = path.strip_prefix(self.built.as_deref()?)?;
        self.root.join(file).is_file().then(|| file.to_owned())
    }
}

fn functions(root: &Path, file: &str) -> Result<Vec<Function>, Failure> {
    let text = fs::read_to_string(root.join(file)).doing(file)?;
    let parsed = syn::parse_file(&text).doing(file)?;
    let mut visitor = Visitor { file: file.into(), type_name: None, functions: Vec::new() };
    visitor.visit_file(&parsed);
    Ok(visitor.functions)
}

struct Visitor {
    file: Rc<str>,
    type_name: Option<String>,
    functions: Vec<Function>,
}

impl Visitor {
    fn add(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let name = signature.ident.to_string();
        let name = match &self.type_name {
            Some(type_name) => format!("{type_name}::{name}"),
            None => name,
        };
        let line = |line: usize| u32::try_from(line).unwrap_or(u32::MAX);
        let lines = (line(signature.span().start().line), line(body.span().end().line));
        self.functions.push(Function::new(name, Rc::clone(&self.file), lines));
    }

    fn within(&mut self, name: Option<String>, visit: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.type_name, name);
        visit(self);
        self.type_name = outer;
    }
}

impl<'a> Visit<'a> for Visitor {
    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        let name = match &*item.self_ty {
            syn::Type::Path(path) => path.path.segments.last().map(|it| it.ident.to_string()),
            _ => None,
        };
        self.within(name, |this| visit::visit_item_impl(this, item));
    }

    fn visit_item_trait(&mut self, item: &'a syn::ItemTrait) {
        self.within(Some(item.ident.to_string()), |this| visit::visit_item_trait(this, item));
    }

    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        self.within(None, |this| {
            this.add(&item.sig, &item.block);
            visit::visit_item_fn(this, item);
        });
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        self.add(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'a syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.add(&item.sig, body);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
struct Ring<T>(T);

impl<T> Ring<T> {
    /// Words.
    #[inline]
    fn len(&self) -> usize {
        fn inner() -> usize {
            1
        }
        inner()
    }
}

trait Io {
    fn now(&self);
    fn later(&self) {}
}
fn free() {}
";

    #[test]
    fn a_line_is_in_its_innermost_function() {
        let root = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(root.path().join("ring/src")).expect("made");
        fs::write(root.path().join("ring/src/ring.rs"), TEXT).expect("written");
        let mut tree = Tree::new(root.path());
        let path = "/built/elsewhere/ring/src/ring.rs";
        let mut at = |path: &str, line| {
            let found = tree.at(path, line).expect("readable");
            found.map(|it| (it.name.clone(), it.file.to_string(), it.length()))
        };
        let found =
            |name: &str, length| Some((name.to_owned(), "ring/src/ring.rs".to_owned(), length));
        assert_eq!(at("/registry/nix/src/lib.rs", 6), None);
        assert_eq!(at(path, 6), found("Ring::len", 6));
        assert_eq!(at(path, 8), found("inner", 3));
        assert_eq!(at(path, 10), found("Ring::len", 6));
        assert_eq!(at(path, 15), None, "it has no body");
        assert_eq!(at(path, 16), found("Io::later", 1));
        assert_eq!(at(path, 18), found("free", 1));
        assert_eq!(at(path, 1), None);
        // The same file below another root is another one.
        assert_eq!(at("/registry/ring/src/ring.rs", 6), None);
    }
}

//! Ids of graph entities: `u32` newtypes, and the map that owns the entities and mints their ids. A map cannot be
//! indexed by another entity's id, and a graph is plain data: cloned, compared and sent without care.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// A dense id of one kind of entity.
pub trait Entity: Copy + Eq {
    fn new(index: usize) -> Self;
    fn index(self) -> usize;
}

macro_rules! entity {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl Entity for $name {
            #[inline]
            fn new(index: usize) -> Self {
                $name(index as u32)
            }
            #[inline]
            fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

entity! {
    /// A node; nodes are numbered in the order in which they run.
    NodeId, "n"
}
entity! {
    /// A value; values are numbered in the order in which they are defined.
    ValueId, "%"
}

/// Owns the entities of one kind.
#[derive(Clone, PartialEq, Debug)]
pub struct PrimaryMap<K, V> {
    items: Vec<V>,
    kind: PhantomData<K>,
}

impl<K: Entity, V> PrimaryMap<K, V> {
    pub fn new() -> Self {
        PrimaryMap { items: Vec::new(), kind: PhantomData }
    }

    #[inline]
    pub fn push(&mut self, item: V) -> K {
        let id = K::new(self.items.len());
        self.items.push(item);
        id
    }

    /// The id that the next `push` gives.
    pub fn next_id(&self) -> K {
        K::new(self.items.len())
    }

    #[inline]
    pub fn get(&self, id: K) -> Option<&V> {
        self.items.get(id.index())
    }

    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub fn contains(&self, id: K) -> bool {
        id.index() < self.items.len()
    }

    pub fn ids(&self) -> impl DoubleEndedIterator<Item = K> + use<K, V> {
        (0..self.items.len()).map(K::new)
    }

    pub fn values(&self) -> std::slice::Iter<'_, V> {
        self.items.iter()
    }

    pub fn values_mut(&mut self) -> std::slice::IterMut<'_, V> {
        self.items.iter_mut()
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> {
        self.items.iter().enumerate().map(|(i, v)| (K::new(i), v))
    }
}

impl<K: Entity, V> Default for PrimaryMap<K, V> {
    fn default() -> Self {
        PrimaryMap::new()
    }
}

impl<K: Entity, V> Index<K> for PrimaryMap<K, V> {
    type Output = V;
    #[inline]
    fn index(&self, id: K) -> &V {
        &self.items[id.index()]
    }
}

impl<K: Entity, V> IndexMut<K> for PrimaryMap<K, V> {
    #[inline]
    fn index_mut(&mut self, id: K) -> &mut V {
        &mut self.items[id.index()]
    }
}

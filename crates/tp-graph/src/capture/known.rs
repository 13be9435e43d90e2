//! What a recorder remembers of the tensor of a value: by which a header that it did not name is found.

use tp_tensor::{DType, Layout, Tensor};

/// The tensor of a value.
pub(super) enum Known {
    /// Kept, so that its storage stays unique while the capture lasts.
    Whole(Tensor),
    /// Of memory that another value keeps. The header is not kept: whoever asks how many share memory means those of the
    /// program.
    Part { storage: usize, dtype: DType, layout: Layout },
}

impl Known {
    /// What is remembered of a view of a value that is kept, or of that value itself under another name.
    pub fn part(t: &Tensor) -> Known {
        Known::Part { storage: t.storage().id(), dtype: t.dtype(), layout: t.layout() }
    }

    pub fn storage(&self) -> usize {
        match self {
            Known::Whole(t) => t.storage().id(),
            Known::Part { storage, .. } => *storage,
        }
    }

    pub fn is_like(&self, t: &Tensor) -> bool {
        match self {
            Known::Whole(known) => known.dtype() == t.dtype() && known.layout() == t.layout(),
            Known::Part { dtype, layout, .. } => *dtype == t.dtype() && *layout == t.layout(),
        }
    }
}

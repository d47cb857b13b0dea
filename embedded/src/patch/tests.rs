//! What patches make of objects.

"""One report on compiled functions: collected, and rendered as HTML, JSON and a Chrome trace."""

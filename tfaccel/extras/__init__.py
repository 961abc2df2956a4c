"""What not every training needs: each sub-package stands alone, and nothing in the rest of the library imports it."""

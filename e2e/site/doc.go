// Package site turns the Markdown pages of the repository into a website that needs no network: a page can be opened
// from a file, and the search reads its index from a script. Nothing is configured twice: docs/README.md is the
// navigation, and the folders of the repository are the folders of the site.
package site
